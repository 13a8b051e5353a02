// SPDX-License-Identifier: BSD-2-Clause

package shaper

//go:generate go tool bpf2go -cc clang-19 -strip llvm-strip-19 -target bpfel -tags linux -output-stem edt edt bpf/edt.bpf.c -- -O2 -Wall -Wextra -Werror -mcpu=v3
