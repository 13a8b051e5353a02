// SPDX-License-Identifier: BSD-2-Clause

// Package qdisc puts cakectl's queueing disciplines under one device and puts
// back what was there before.
//
// The tree it installs is an mq root with the handle ca4e: and one fq for each
// transmit queue, or a lone fq with that handle on a device that has one
// queue. The fq holds every packet until the departure time that the BPF
// program wrote into it; it shapes nothing by itself.
//
// Before anything is touched, [Capture] records the device in a [Journal].
// [Install] builds the tree in steps and undoes them all when one fails;
// [Restore] brings the qdisc tree back to the journal and compares. What the
// kernel made by itself (handle 0:) is restored by deleting our root, after
// which the kernel makes it again; what an administrator made is created again
// from its kind, handle and option bytes. Ingress and clsact qdiscs are never
// touched.
//
// Grafting a qdisc on a live device resets all of its transmit queues, so what
// they hold is lost. Install and Restore therefore leave alone whatever is
// right already, and change the options of a live fq in place.
//
// All functions work in the network namespace of the calling thread.
package qdisc
