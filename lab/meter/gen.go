// SPDX-License-Identifier: BSD-2-Clause

package meter

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -tags linux -output-stem meter -type slot meter bpf/meter.bpf.c -- -O2 -Wall -Wextra -Werror -mcpu=v3
