/* The register tiles for 16 registers of 32 bytes, which kernels of all cells share: see body.h. */
#define LEVEL avx2
#define BYTES 32
#define ROWS 4
#define V8 1
#define V4 3
#define V3 3
#define V2 4
#define V1 8
