# Part of _cpu.pyx: a plan on arrays. Most calls are one `_work`; what else is here is for operands that are not finite,
# for sums that would be rounded twice, for more than three axes and for little scratch.


cdef Call _call_on(Plan base, first, second, out, bias, accumulate, int threads):
    """The call of a plan on arrays in the order in which its kernels have them, without scratch yet."""
    cdef Call call = Call.__new__(Call)
    call.watch = Watch()
    call.plan = base
    call.source = _data(first)
    call.source_end = call.source + <index_t>first.nbytes
    call.weight = _data(second if base.gathers else out)
    call.target = _data(out if base.gathers else second)
    call.bias = NULL if bias is None else _data(bias)
    call.accumulate = accumulate
    call.threads = _worth(threads, base.most_tasks, base.products)
    return call


cdef object _work(Plan base, first, second, out, bias, scratch, accumulate, int threads):
    """out <- the map of (first, second), plus bias, or added to out, in the blocks of this plan."""
    if base.tiled and accumulate and not base.whole:  # a result that is not finite could not be taken back
        small = _small_samples(base, first, second, threads)
        if not any(small):
            return _otherwise(base, base.geometry, first, second, out, bias, scratch, accumulate, threads)
        if not all(small):
            return _in_runs(base, small, first, second, out, bias, scratch, accumulate, threads)
    if base.flushes:
        kept = _kept_samples(base, first, second, threads)
        if not any(kept):
            return _otherwise(base, base.geometry, first, second, out, bias, scratch, accumulate, threads)
        if not all(kept):
            return _in_runs(base, kept, first, second, out, bias, scratch, accumulate, threads)
    if base.slices and accumulate:  # what is not to be trusted could not be taken back
        trusted = _trusted_samples(base, first, second, threads)
        if not any(trusted):
            return _otherwise(base, base.geometry, first, second, out, bias, scratch, accumulate, threads)
        if not all(trusted):
            return _in_runs(base, trusted, first, second, out, bias, scratch, accumulate, threads)
    if base.geometry.converts[1] and not base.whole and (base.adds or accumulate and bias is not None and base.fills):
        return _rounded_once(base, first, second, out, bias, scratch, accumulate, threads)
    given = first, second
    if base.swapped:
        first, second = second, first
    if bias is not None and base.geometry.converts[1]:
        bias = bias.astype(base.real)
    cdef Call call = _call_on(base, first, second, out, bias, accumulate, threads)
    if scratch is None:
        scratch = base.new_scratch(call.threads)
    call.place(_data(scratch), scratch.size)
    # a padded zero must not meet a NaN or infinity: that factor is the weight, or grad_weight's grad_output, which
    # shows in the (smaller) result unless that is added to
    cdef bint early = base.gathers or accumulate
    if early and base.checks and not (
            call.is_finite(second, base.stored[0])
            and (not base.gapped or base.around_finite and call.is_finite(first, base.stored[0]))):
        if base.swapped and base.gathers and base.geometry.batch > 1:
            single = plan(base.map, base.geometry._replace(batch=1), base.dtype, "gemm", base.result)
            return _one_by_one(base, single, *given, out, bias, scratch, accumulate, call.threads)
        if base.geometry.per_sample and base.geometry.batch > 1 and not base.gathers:
            return _alone(base, range(base.geometry.batch), *given, out, scratch, accumulate, call.threads)
        return _exactly(base, *given, out, bias, scratch, accumulate, call.threads)
    # a swapped plan has the channels where others have the samples, and a bias of 64 bits may be no double
    if not base.covered or bias is not None and (base.swapped or base.in_doubles):
        _begin(base, out, bias, accumulate)
        call.bias, call.accumulate = NULL, True
    cdef bint doubts = base.tiled and base.gathers and not base.whole
    doubtful = np.zeros(base.geometry.batch, np.bool_) if doubts else None
    call.doubtful = _data(doubtful) if doubts else NULL
    if base.slices:
        seen = np.empty((base.geometry.batch + 1, 2), np.uint32)
        seen[:] = NOTHING, 0
        call.seen = <seen_t *>_data(seen)
    if base.looped:
        _each_volume(base, call, scratch)
    elif base.gathers:
        call.gather()
    else:
        call.correlate()
    if base.slices and not accumulate:
        _mend(base, call, first, second, out, bias, scratch)
    if doubts and doubtful.any():
        for sample in np.flatnonzero(doubtful):
            _defined(base, first.reshape(base.geometry.batch, -1)[sample], second,
                     out.reshape(base.geometry.batch, -1)[sample], bias, scratch, call.threads)
    if early or not base.checks or call.is_finite(out, base.stored[2]):
        return
    if not base.geometry.per_sample or base.geometry.batch == 1:
        return _exactly(base, *given, out, bias, scratch, accumulate, call.threads)
    samples = [n for n in range(base.geometry.batch) if not call.is_finite(out[n], base.stored[2])]
    _alone(base, samples, *given, out, scratch, accumulate, call.threads)


def _small_samples(Plan base, first, second, int threads):
    """Of each sample, whether all that its sums are made of is so small that none of tiles is other than finite."""
    cdef Call call = Call.__new__(Call)
    cdef int stored = base.stored[0]
    value, batch = base.geometry.padding_value, base.geometry.batch
    call.watch, call.plan, call.threads = Watch(), base, threads
    summed = [first] if base.gathers else [first, second]  # of samples
    if not (abs(value.real) < 2.0**32 and abs(value.imag) < 2.0**32) or (
            base.gathers and not call.is_finite(second, stored, True)):
        return [False] * batch
    if all([call.is_finite(one, stored, True) for one in summed]):
        return [True] * batch
    if not (base.gathers or base.geometry.per_sample):
        return [False] * batch
    samples = [one.reshape(batch, -1) for one in summed]
    return [all([call.is_finite(one[n], stored, True) for one in samples]) for n in range(batch)]


def _kept_samples(Plan base, first, second, int threads):
    """Of each sample, whether products of matrices flush nothing that its results are made of. They take what is too
    small to be normal for zero, operands and sums. No sum is, if the least product of single bits of operands, of 8
    bits each, is not: all sums are multiples of that."""
    cdef Call call = Call.__new__(Call)
    cdef int other, least = SMALLEST // 2
    cdef seen_t seen
    call.watch, call.plan, call.threads = Watch(), base, threads
    batch = base.geometry.batch
    if not base.gathers:  # both operands are large
        kept = [call.is_finite(operand, base.stored[0], least) for operand in (first, second)]
        if all(kept) or not base.geometry.per_sample:
            return [all(kept)] * batch
        return [all([call.is_finite(one, base.stored[0], least) for one in (x, y)])
                for x, y in zip(first.reshape(batch, -1), second.reshape(batch, -1))]
    seen = call.range_of(second)
    other = _least_exponent(&seen)
    least = max(1, SMALLEST - other)
    seen = call.range_of(element(base.geometry.padding_value, base.dtype))
    if other == 0 or _least_exponent(&seen) < least:
        return [False] * batch
    if call.is_finite(first, base.stored[0], least):
        return [True] * batch
    return [call.is_finite(sample, base.stored[0], least) for sample in first.reshape(batch, -1)]


def _trusted_samples(Plan base, first, second, int threads):
    """Of each sample, whether its floats may be sliced, and no sum comes near infinity."""
    cdef Call call = Call.__new__(Call)
    cdef seen_t weight, constant, sample
    call.watch, call.plan, call.threads = Watch(), base, threads
    weight, constant = call.range_of(second), call.range_of(element(base.geometry.padding_value, base.dtype))
    trusted = []
    for cells in first.reshape(base.geometry.batch, -1):
        sample = call.range_of(cells)
        sample.least, sample.greatest = min(sample.least, constant.least), max(sample.greatest, constant.greatest)
        trusted.append(_keeps_slices(&weight, &sample) and not _may_overflow(&weight, &sample, base.summed))
    return trusted


cdef int _mend(Plan base, Call call, first, second, out, bias, scratch) except -1:
    """Of samples with floats that should not have been sliced, the result by 'gemm': all, if a weight is not finite,
    which padding does not meet; where sums may have overflowed, what of it is not finite."""
    cdef index_t n, batch = base.geometry.batch
    lost = [_exponent(call.seen[0].greatest) > GREATEST or not _keeps_slices(&call.seen[0], &call.seen[1 + n])
            for n in range(batch)]
    if all(lost):
        _otherwise(base, base.geometry, first, second, out, bias, scratch, False, call.threads)
        return 0
    samples, results = first.reshape(batch, -1), out.reshape(batch, -1)
    for n in range(batch):
        if lost[n]:
            _otherwise(base, base.geometry._replace(batch=1), samples[n], second, results[n], bias, scratch, False,
                       call.threads)
        elif _may_overflow(&call.seen[0], &call.seen[1 + n], base.summed):
            _defined(base, samples[n], second, results[n], bias, scratch, call.threads)
    return 0


def _in_runs(Plan base, small, first, second, out, bias, scratch, accumulate, threads):
    """Samples one after the other that are small by tiles, others by 'gemm'."""
    batch = len(small)
    for is_small, run in groupby(range(batch), small.__getitem__):
        samples = list(run)
        part = slice(samples[0], samples[0] + len(samples))
        other = plan(base.map, base.geometry._replace(batch=len(samples)), base.dtype,
                     base.algorithm if is_small else "gemm", base.result)
        other.run(first.reshape(batch, -1)[part], second if base.gathers else second.reshape(batch, -1)[part],
                  out.reshape(batch, -1)[part], bias, other.enough(scratch), accumulate, threads)


def _apart(Plan base, first, second, out, bias, scratch, accumulate, threads):
    """Sample by sample, for which a smaller scratch is enough."""
    if base.gathers:
        _one_by_one(base, base.of_batch(1), first, second, out, bias, scratch, accumulate, threads)
    else:
        assert base.geometry.per_sample, "a sum over the batch must fit the least scratch"
        _alone(base, range(base.geometry.batch), first, second, out, scratch, accumulate, threads)


def _alone(Plan base, samples, first, second, out, scratch, accumulate, threads):
    """The weight's gradients of some samples, each by itself."""
    single = base.of_batch(1)
    for n in samples:
        single.run(first[n:n + 1], second[n:n + 1], out[n:n + 1], None, single.enough(scratch), accumulate, threads)


def _rounded_once(Plan base, first, second, out, bias, scratch, accumulate, threads):
    """In the type of sums, where what is stored would be rounded and then added to; part by part if it can."""
    for geometry, one, other, result, own in _rounding.parts(base.map, base.geometry, first, second, out, bias):
        single = plan(base.map, geometry, base.dtype, base.algorithm, base.real)
        total = empty(result.shape, base.real)
        single.run(one, other, total, None if own is None else own.astype(base.real), single.enough(scratch), False,
                   threads)
        with np.errstate(all="ignore"):
            if accumulate:
                total += result
            result[...] = total
        total = None  # before the next


cdef int _begin(Plan base, out, bias, accumulate) except -1:
    """out <- bias or 0, or out + bias."""
    cdef bint backwards = base.map == "grad_input"
    geometry = base.geometry
    count = geometry.in_channels if backwards else geometry.out_channels
    if not accumulate:
        out[...] = 0
    if bias is None:
        return 0
    if geometry.x_last if backwards else geometry.y_last:
        channels = out.reshape(geometry.batch, -1, count)
    else:
        channels = out.reshape(geometry.batch, count, -1).swapaxes(1, 2)
    channels += bias
    return 0


cdef int _each_volume(Plan base, Call call, scratch) except -1:
    """The terms of the map, one after the other: each works on volumes of the operands."""
    cdef char *source = call.source
    cdef char *weight = call.weight
    cdef char *target = call.target
    cdef char *bias = call.bias
    cdef int accumulate = call.accumulate, threads = call.threads
    cdef index_t x, w, y
    cdef Plan plan
    inner = _outer.of_volumes(base.geometry)
    steps = [inner.parts * step for step in (
        prod(whole_size(inner)) * (inner.in_channels if inner.x_last else 1), prod(inner.kernel_size),
        prod(inner.output_size) * (inner.out_channels if inner.y_last else 1))]
    for terms in _outer.stored_together(base.map, base.geometry, base.joins):
        term = terms[0]
        plan = base if term.x is not None else base.padding
        if plan is not call.plan:
            call.plan, call.threads = plan, threads
            call.place(_data(scratch), scratch.size)
        x, w, y = min(one.x or 0 for one in terms) * steps[0], term.w * steps[1], term.y * steps[2]
        if base.map == "grad_input":
            x, y = y, x
        if base.swapped:
            x, w = w, x
        call.source, call.weight = source + x * base.size[SOURCE], weight + w * base.size[WEIGHT]
        call.target = target + y * base.size[TARGET]
        call.accumulate, call.bias = accumulate or term.adds, NULL if term.adds else bias
        if base.gathers:
            call.gather()
            continue
        if base.joins:
            places = np.array([(one.x * steps[0] - x, one.y * steps[2] - y) for one in terms], np.intp)
            places *= (base.size[SOURCE], base.size[TARGET])
            call.places, call.terms = <index_t *>_data(places), len(terms)
        call.correlate()
    return 0


def _one_by_one(Plan base, single, first, second, out, bias, scratch, accumulate, threads):
    """Sample by sample."""
    batch = base.geometry.batch
    for sample, result in zip(first.reshape(batch, -1), out.reshape(batch, -1)):
        single.run(sample, second, result, bias, single.enough(scratch), accumulate, threads)


def _defined(Plan base, sample, weight, result, bias, scratch, threads):
    """What of a sample's result is not finite once more, by the definition."""
    windows = None if base.swapped else _doubtful.windows(base.map, base.geometry, sample, result)
    if windows is None:
        _otherwise(base, base.geometry._replace(batch=1), sample, weight, result, bias, scratch, False, threads)
        return
    for window in windows:
        made = np.empty((window.geometry.batch, len(window.channels)), result.dtype)
        _otherwise(base, window.geometry, window.cells, weight, made, bias, scratch, False, threads)
        before = window.channels[:, window.places]
        window.channels[:, window.places] = np.where(np.isfinite(before), before, made.T)


def _otherwise(Plan base, geometry, first, second, out, bias, scratch, accumulate, threads):
    """The map without Winograd's algorithm, of this geometry or of one sample."""
    other = plan(base.map, geometry, base.dtype, "gemm", base.result)
    other.run(first, second, out, bias, other.enough(scratch), accumulate, threads)


def _exactly(Plan base, first, second, out, bias, scratch, accumulate, threads):
    """Again without a padded product, for operands that are not all finite."""
    exact = plan(base.map, base.geometry, base.dtype, base.algorithm, base.result, True)
    exact.run(first, second, out, bias, exact.enough(scratch), accumulate, threads)
