// SPDX-License-Identifier: BSD-2-Clause

// Package wire is what the host and the guest of a VM run say to each other:
// the job, which the guest finds in its initramfs, and the frames it sends
// back over one virtio-serial port. Everything travels on that one port, in
// order, so that a result can never overtake the output that led to it.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// PortName is the name of the virtio-serial port that carries the frames.
const PortName = "cakectl.vm"

// JobPath is where the guest finds its Job.
const JobPath = "/job.json"

// OutDir is the guest's directory whose content is sent back to the host.
const OutDir = "/out"

// Job is what the guest does between boot and power-off.
type Job struct {
	// Modules are kernel modules to load, each after those it depends on.
	Modules []Module `json:"modules"`
	// Steps run one after the other, whatever the exit status of the earlier ones.
	Steps []Step `json:"steps"`
}

// Module is a kernel module in the initramfs.
type Module struct {
	Path       string `json:"path"`
	Parameters string `json:"parameters,omitempty"` // name=value, separated by spaces
}

// Step is one program to run in the guest.
type Step struct {
	// Command is the program (a path, or a name looked up in PATH) and its arguments.
	Command []string `json:"command"`
	// Dir is the working directory; empty means /.
	Dir string `json:"dir,omitempty"`
	// Env is added to the guest's own environment, in the form KEY=value.
	Env []string `json:"env,omitempty"`
}

// Kind says what a frame carries.
type Kind byte

// The frames, in the order in which a run sends them.
const (
	KindHello     Kind = 'h' // Hello: the guest is up
	KindStepStart Kind = 's' // StepStart
	KindOutput    Kind = 'o' // raw bytes of the step's stdout and stderr
	KindStepEnd   Kind = 'e' // StepEnd
	KindFiles     Kind = 'f' // a piece of the tar archive of OutDir
	KindEnd       Kind = '.' // empty: the run is complete
	KindFatal     Kind = '!' // text: the guest could not do its job
)

// Hello tells about the guest.
type Hello struct {
	KernelRelease string        `json:"kernel_release"`
	Uptime        time.Duration `json:"uptime_ns"` // guest clock since the kernel started
}

// StepStart announces the output of a step.
type StepStart struct {
	Index int `json:"index"`
}

// StepEnd tells how a step ended.
type StepEnd struct {
	Index    int           `json:"index"`
	ExitCode int           `json:"exit_code"`        // 128 + signal number when a signal ended it, 127 when it could not be started
	Signal   string        `json:"signal,omitempty"` // name of that signal
	Error    string        `json:"error,omitempty"`  // why it could not be started
	Elapsed  time.Duration `json:"elapsed_ns"`       // by the guest's clock
}

// maxPayload bounds a frame, so that garbage on the port can't ask for gigabytes.
const maxPayload = 1 << 20

// Write sends one frame.
func Write(w io.Writer, kind Kind, payload []byte) error {
	if len(payload) > maxPayload {
		return fmt.Errorf("frame %q of %d bytes is longer than %d", kind, len(payload), maxPayload)
	}
	frame := make([]byte, 0, 5+len(payload))
	frame = append(frame, byte(kind))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(payload)))
	frame = append(frame, payload...)
	if _, err := w.Write(frame); err != nil {
		return fmt.Errorf("write frame %q: %w", kind, err)
	}
	return nil
}

// WriteJSON sends one frame with v as its payload.
func WriteJSON(w io.Writer, kind Kind, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode frame %q: %w", kind, err)
	}
	return Write(w, kind, payload)
}

// Read receives one frame. At the end of the stream, between two frames, it
// returns io.EOF; within a frame, io.ErrUnexpectedEOF.
func Read(r io.Reader) (Kind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	kind, length := Kind(head[0]), binary.BigEndian.Uint32(head[1:])
	if length > maxPayload {
		return 0, nil, fmt.Errorf("frame %q claims %d bytes, more than %d: the port carries something else", kind, length, maxPayload)
	}
	payload := make([]byte, length)
	if _, err := io.ReadFull(r, payload); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, fmt.Errorf("read frame %q: %w", kind, err)
	}
	return kind, payload, nil
}
