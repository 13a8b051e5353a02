// SPDX-License-Identifier: BSD-2-Clause

// Package api is how a cakectl process talks to another: HTTP and JSON over a unix socket in the run
// directory. [Status] is also what `cakectl status -o json` prints.
package api
