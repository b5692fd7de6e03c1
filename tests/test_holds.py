"""What holds the slow layers: every row of the committed record has a class, and the page says what the table says."""
import json
import sys
from pathlib import Path

import pytest

pytest.importorskip('torch')
FOLDER = Path(__file__).parents[1] / 'benchmarks'
if not FOLDER.is_dir():
    pytest.skip('installed without its source', allow_module_level=True)
sys.path.append(str(FOLDER))
import packages  # noqa: E402, F401  before torch

import harness  # noqa: E402
import holds  # noqa: E402
import layers  # noqa: E402

sys.path.remove(str(FOLDER))  # it has a file named cuda

RECORD = json.loads(holds.RECORD.read_text())


def test_every_row_has_its_class_and_every_class_a_row():
    assert [row['held_by'] for row in RECORD['rows']] == [holds.class_of_row(row).name for row in RECORD['rows']]
    assert {row['held_by'] for row in RECORD['rows']} == {one.name for one in holds.CLASSES}
    assert len({one.name for one in holds.CLASSES}) == len(holds.CLASSES)


def test_the_page_is_what_the_command_writes():
    page = holds.README.read_text()
    assert page == holds.with_section(page, RECORD), 'python benchmarks/holds.py writes it anew'


def test_layers_that_were_not_timed_have_a_class_too():
    work = harness.work_of(layers.NETWORKS.values(), ('float32', 'float64'), harness.MAPS)
    assert all(holds.class_of(layer, network.batch, *names) in holds.CLASSES for network, layer, *names in work)


@pytest.mark.parametrize('layer, map_name, name', [
    (layers.Layer(64, 3, (32, 32), (4, 4), 2, 1, transposed=True), 'forward', 'First layers, input gradients'),
    (layers.Layer(64, 3, (32, 32), (4, 4), 2, 1, transposed=True), 'grad_input', 'First layers, forward'),
    (layers.Layer(100, 512, (1, 1), (4, 4), transposed=True), 'grad_weight', 'Kernels as large as the image'),
    (layers.Layer(64, 32, (16, 16, 16), (2, 2, 2), 2, transposed=True), 'forward', 'Kernels as large as their stride'),
    (layers.Layer(128, 64, (8, 8), (4, 4), 2, 1, transposed=True), 'forward', 'Strided kernels, input gradients'),
], ids=str)
def test_a_transposed_layer_is_held_by_what_holds_the_layer_it_undoes(layer, map_name, name):
    assert holds.class_of(layer, 64, map_name, 'float32').name == name


def test_a_class_says_how_many_of_its_rows_are_low():
    one = holds.Class('Made up', lambda case: True, 'Words ' * 30)
    rows = [{'held_by': name, 'share_of_bound': share} for name, share in (
        ('Made up', 0.5), ('Made up', 0.79), ('Made up', 1.25), ('Another', 0.1))]
    first, *others = holds.bullet(one, rows).splitlines()
    assert first.startswith('- **Made up** (50 to 125 %; 2 of 3 rows under 80 %). Words Words')
    assert others and all(line.startswith('  Words') and len(line) <= 120 for line in others)
    assert holds.bullet(one, rows[3:]) == ''


def test_the_command_names_classes_and_leaves_the_rest_of_the_page(tmp_path, capsys):
    record, page = tmp_path / 'record.json', tmp_path / 'page.md'
    rows = [{**row, 'held_by': None} for row in RECORD['rows'][:9]]
    record.write_text(json.dumps({**RECORD, 'rows': rows}))
    page.write_text(f'before\n\n{holds.BEGIN}\nold\n{holds.END}\n\nafter\n')
    for _ in range(2):
        holds.main(record, page)
    assert json.loads(record.read_text())['rows'] == RECORD['rows'][:9]
    text = page.read_text()
    assert text.startswith('before\n\n<!--') and text.endswith('-->\n\nafter\n') and '\nold\n' not in text
    assert text.count('- **') == len({row['held_by'] for row in RECORD['rows'][:9]})
    assert ' of its 9 rows are under 80 %' in ' '.join(text.split())
