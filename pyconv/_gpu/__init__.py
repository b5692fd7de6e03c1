"""The CUDA backend's rooms: kernels, their compiler, devices and arrays. Imported when the first GPU array arrives."""
