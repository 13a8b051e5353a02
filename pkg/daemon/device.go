// SPDX-License-Identifier: BSD-2-Clause

package daemon

import (
	"context"
	"errors"
	"sync"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/metrics"
)

// ErrDetached ends [Device.Run]: a client has detached the device, or has tried to.
var ErrDetached = errors.New("detached by a client")

// Device is an attached device that this process controls and answers for.
type Device struct {
	Shaped
	recorder *metrics.Recorder

	stopping context.Context // ends the controller
	stop     context.CancelFunc
	ran      chan struct{} // closed: the controller has ended

	mu       sync.Mutex // guards what follows, and is held while a client detaches
	asked    bool       // a client asked to detach
	detached error      // how that ended
}

var _ api.Device = (*Device)(nil)

// NewDevice makes a Device of an attached one. [Device.Run] has to follow.
func NewDevice(shaped Shaped, recorder *metrics.Recorder) *Device {
	d := &Device{Shaped: shaped, recorder: recorder, ran: make(chan struct{})}
	d.stopping, d.stop = context.WithCancel(context.Background())
	shaped.OnReaction(recorder.Reacted)
	return d
}

// Run runs the controller until ctx ends, and returns nil then, or until a client detaches the
// device.
func (d *Device) Run(ctx context.Context) error {
	err := d.control(ctx)
	d.mu.Lock() // and wait for the client that may have ended it
	defer d.mu.Unlock()
	if d.asked {
		return ErrDetached
	}
	return err
}

func (d *Device) control(ctx context.Context) error {
	defer close(d.ran)
	defer d.stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.stopping, cancel)()
	return d.Shaped.Run(ctx)
}

// Set is for clients.
func (d *Device) Set(ctx context.Context, change config.Change) (api.Changed, error) {
	return d.set(ctx, change, metrics.SourceAPI)
}

func (d *Device) set(ctx context.Context, change config.Change, source metrics.ChangeSource) (api.Changed, error) {
	changed, err := d.Shaped.Set(ctx, change)
	d.recorder.Changed(source, resultOf(err))
	return changed, err
}

func resultOf(err error) metrics.ChangeResult {
	switch {
	case err == nil:
		return metrics.ResultOK
	case KindOf(err) == api.KindInvalid:
		return metrics.ResultInvalid
	default:
		return metrics.ResultFailed
	}
}

// Detach is for clients. It ends Run.
func (d *Device) Detach(ctx context.Context) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.asked {
		d.asked = true
		d.stop()
		<-d.ran
		d.detached = d.Shaped.Detach(ctx)
	}
	return d.detached
}

// Left says what became of a device.
type Left int

// What can become of a device.
const (
	LeftDetached Left = iota // and as it was found
	LeftByClient             // a client had detached it
	LeftKept                 // shaping goes on without a process
)

// Leave ends the shaping after Run, unless it is to be kept or a client has ended it.
func (d *Device) Leave(ctx context.Context, keep bool) (Left, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.asked:
		return LeftByClient, d.detached // what is left can be detached again
	case keep:
		return LeftKept, nil
	default:
		return LeftDetached, d.Shaped.Detach(ctx)
	}
}
