/* The kernels for the baseline of the target: SSE2's 16 registers of 4 floats on x86-64, NEON's 32 on 64-bit Arm.
   4 x 2 tiles leave room for the products where multiply and add are two instructions. */
#include "kernels.h"

#define LEVEL portable
#define BYTES 16
#define ROWS 4
#define V8 1
#define V4 2
#define V3 3
#define V2 4
#define V1 8

#define CELL 1
#include "instances.h"
