// SPDX-License-Identifier: BSD-2-Clause

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/metrics"
	"github.com/cakectl/cakectl/pkg/shaper"
)

// After a failure a device is tried again, later each time.
const (
	minRetry = time.Second
	maxRetry = time.Minute
)

var (
	errAttaching = errors.New("it is being attached")
	errWaiting   = errors.New("there is no such device yet")
)

// keeper keeps one device as it is wanted, in whatever state that is. For clients it is the device.
type keeper struct {
	name     string
	runDir   string
	netns    uint64
	shapers  Shapers
	recorder *metrics.Recorder
	log      *slog.Logger

	end    context.CancelFunc
	ended  chan struct{} // closed: nothing of the keeper runs any more
	retry  chan struct{} // the wanted spec has changed: do not wait any longer
	asking chan struct{} // holds a value while a scrape reads the status

	mu      sync.Mutex
	wanted  config.Spec
	device  *Device       // nil while it is not attached
	problem error         // why it is not
	failure error         // why the last attempt failed; nil where none did since it was there
	changed chan struct{} // closed and replaced when one of those changes
	gone    bool          // a client has detached it, or the file has it no more
	held    chan struct{} // closed: nothing is being done to the device; nil: nothing was
}

var _ api.Device = (*keeper)(nil)

func newKeeper(d *Daemon, spec config.Spec) *keeper {
	return &keeper{
		name: spec.Device, runDir: d.runDir, netns: d.netns, shapers: d.shapers, log: d.log,
		recorder: d.collector.Recorder(spec.Device),
		ended:    make(chan struct{}),
		retry:    make(chan struct{}, 1),
		asking:   make(chan struct{}, 1),
		wanted:   spec,
		problem:  errAttaching,
		changed:  make(chan struct{}),
	}
}

// persist does something again and again until ctx ends or the device is gone. After a failure it
// waits, longer each time.
func (k *keeper) persist(ctx context.Context, do func(context.Context) error) {
	for failures := 0; ctx.Err() == nil; {
		began := time.Now()
		err := do(ctx)
		if ctx.Err() != nil || k.isGone() {
			return
		}
		if err == nil || time.Since(began) > maxRetry {
			failures = 0
		}
		if err == nil {
			continue
		}
		delay := min(minRetry<<min(failures, 10), maxRetry)
		failures++
		k.log.Warn("not attached; trying again later", "device", k.name, "err", err, "delay", delay)
		k.put(nil, err)
		select {
		case <-ctx.Done():
			return
		case <-k.retry:
			failures = 0
		case <-time.After(delay):
		}
	}
}

// serve is the daemon of the device: it answers clients, and attaches and controls the device.
func (k *keeper) serve(ctx context.Context) (err error) {
	recorded, err := k.shapers.Recorded(k.name)
	if err != nil {
		return err
	}
	claim, err := api.Listen(k.runDir, recorded)
	if errors.Is(err, api.ErrServed) {
		return fmt.Errorf("%w: cakectl status %s names it; serve takes the device when that ends", err, k.name)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, claim.Close()) }()
	process := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	held := make(chan struct{})
	k.mu.Lock()
	k.held = held
	k.mu.Unlock()
	go func() {
		defer cancel()
		defer close(held)
		k.persist(ctx, k.hold)
		if process.Err() != nil {
			k.leaveUnheld(context.WithoutCancel(process))
		}
	}()
	err = claim.Serve(ctx, api.Server{Device: k, Classify: KindOf, Netns: k.netns, Log: k.log})
	cancel()
	<-held
	return err
}

// hold attaches the device, once it is there, and controls it.
func (k *keeper) hold(ctx context.Context) error {
	spec := k.spec()
	k.put(nil, errAttaching)
	shaped, err := k.shapers.Attach(ctx, spec)
	switch {
	case isMissing(err):
		k.log.Info("waiting for the device", "device", k.name)
		k.put(nil, errWaiting)
		return k.shapers.Await(ctx, k.name)
	case err != nil:
		k.recorder.Changed(metrics.SourceFile, resultOf(err))
		return err
	}
	k.recorder.Changed(metrics.SourceFile, metrics.ResultOK)
	device := NewDevice(shaped, k.recorder)
	k.put(device, errAttaching) // for clients it is there, and not settled yet
	k.log.Info("attached", "device", k.name)
	// Adopting changes nothing back to its default, and meanwhile something else may be wanted.
	if _, err := k.bring(ctx, device, k.spec()); err != nil {
		k.log.Warn("not changed", "device", k.name, "err", err)
	}
	k.put(device, nil)
	err = device.Run(ctx)
	k.put(nil, errAttaching)
	if errors.Is(err, ErrDetached) || ctx.Err() != nil {
		err = errors.Join(err, k.leave(context.WithoutCancel(ctx), device))
	}
	return errors.Join(err, device.Close())
}

// leave ends the shaping, unless it is to be kept, and says so.
func (k *keeper) leave(ctx context.Context, device *Device) error {
	left, err := device.Leave(ctx, k.spec().Keep && !k.isGone())
	switch {
	case err != nil:
		k.log.Error("not detached", "device", k.name, "err", err)
	case left == LeftKept:
		k.log.Info("shaping goes on without a process", "device", k.name)
	default:
		k.log.Info("detached, and as it was found", "device", k.name)
	}
	return err
}

// leaveUnheld ends what an earlier process left on a device that this one was still adopting when it
// had to end, unless it is to be kept. Where nothing is left it does nothing.
func (k *keeper) leaveUnheld(ctx context.Context) {
	if k.isGone() || k.spec().Keep {
		return
	}
	s, err := k.shapers.Open(k.name)
	if errors.Is(err, shaper.ErrNotAttached) {
		return
	}
	if err == nil {
		err = errors.Join(s.Detach(ctx), s.Close())
	}
	if err != nil {
		k.log.Error("not detached", "device", k.name, "err", err)
		return
	}
	k.log.Info("detached, and as it was found", "device", k.name)
}

// put notes a new state, for all who wait for one.
func (k *keeper) put(device *Device, problem error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.device, k.problem = device, problem
	if !errors.Is(problem, errAttaching) {
		k.failure = problem
	}
	close(k.changed)
	k.changed = make(chan struct{})
}

// state is the device, or why there is none: while it is tried again, why that failed before.
func (k *keeper) state() (*Device, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if errors.Is(k.problem, errAttaching) && k.failure != nil && !errors.Is(k.failure, errWaiting) {
		return k.device, k.failure
	}
	return k.device, k.problem
}

// attached is state, where that is no longer in the balance or has been for long.
func (k *keeper) attached(ctx context.Context) (*Device, error) {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for {
		k.mu.Lock()
		changed := k.changed
		k.mu.Unlock()
		device, problem := k.state()
		if device != nil || !errors.Is(problem, errAttaching) {
			return device, problem
		}
		select {
		case <-changed:
		case <-k.ended:
			return nil, problem
		case <-ctx.Done():
			return nil, problem
		}
	}
}

func (k *keeper) spec() config.Spec {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.wanted
}

func (k *keeper) isGone() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.gone
}

// want makes the device as spec says, and tells how that went.
func (k *keeper) want(ctx context.Context, spec config.Spec) api.Outcome {
	k.mu.Lock()
	wanted := k.wanted
	k.wanted = spec
	device := k.device
	if device == nil && !errors.Is(k.problem, errWaiting) {
		k.problem = errAttaching
	}
	k.mu.Unlock()
	if device == nil {
		select {
		case k.retry <- struct{}{}:
		default:
		}
		return k.settled()
	}
	current := device.Spec()
	outcome, err := k.bring(ctx, device, spec)
	if err != nil {
		k.unwant(spec, wanted)
		outcome.Result, outcome.Error = api.ResultFailed, answerOf(err)
		return outcome
	}
	if current.FromFile != spec.FromFile || current.CheckQueues != spec.CheckQueues {
		device.stop() // and adopt it anew, with those
		if !current.FromFile && spec.FromFile {
			outcome.Changes = append(outcome.Changes, "from the file now")
		}
		if current.CheckQueues != spec.CheckQueues {
			outcome.Changes = append(outcome.Changes, fmt.Sprintf("check_queues %t -> %t", current.CheckQueues, spec.CheckQueues))
		}
	}
	if wanted.Keep != spec.Keep { // which concerns the end of this process only
		outcome.Changes = append(outcome.Changes, fmt.Sprintf("keep %t -> %t", wanted.Keep, spec.Keep))
	}
	if len(outcome.Changes) > 0 {
		outcome.Result = api.ResultChanged
	}
	return outcome
}

// unwant takes back a spec that an attached device has refused: what it has is what it is to have when
// it must be attached again.
func (k *keeper) unwant(refused, before config.Spec) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if reflect.DeepEqual(k.wanted, refused) { // unless something else is wanted since
		k.wanted = before
	}
}

// bring makes an attached device as spec says, as far as that is a change.
func (k *keeper) bring(ctx context.Context, device *Device, spec config.Spec) (api.Outcome, error) {
	outcome := api.Outcome{Device: k.name, Result: api.ResultUnchanged, Attached: true}
	current := device.Spec()
	change, err := current.ChangeTo(spec)
	if err != nil {
		return outcome, err
	}
	after, err := current.Apply(change)
	if err != nil {
		return outcome, err
	}
	changes := config.Differences(current, after)
	if len(changes) == 0 {
		return outcome, nil
	}
	result, err := device.set(ctx, change, metrics.SourceFile)
	if err != nil {
		return outcome, err
	}
	outcome.Result, outcome.Changes, outcome.RateWrites = api.ResultChanged, changes, result.RateWrites
	return outcome, nil
}

// settled waits until it is clear what becomes of a device that is not attached.
func (k *keeper) settled() api.Outcome {
	outcome := api.Outcome{Device: k.name}
	for {
		k.mu.Lock()
		device, problem, changed := k.device, k.problem, k.changed
		k.mu.Unlock()
		switch {
		case device != nil && problem == nil:
			outcome.Result, outcome.Attached = api.ResultAttached, true
			return outcome
		case errors.Is(problem, errWaiting):
			outcome.Result = api.ResultWaiting
			return outcome
		case !errors.Is(problem, errAttaching):
			outcome.Result, outcome.Error = api.ResultFailed, answerOf(problem)
			return outcome
		}
		select {
		case <-k.ended:
			outcome.Result = api.ResultDetached
			return outcome
		case <-changed:
		}
	}
}

func answerOf(err error) *api.Error { return &api.Error{Kind: KindOf(err), Message: err.Error()} }

// Status is that of the device, or says why there is none.
func (k *keeper) Status(ctx context.Context) (api.Status, error) {
	device, problem := k.state()
	if device != nil {
		return device.Status(ctx)
	}
	if errors.Is(problem, errAttaching) {
		// One that is being adopted is shaped all the while.
		if status, err := k.kernelStatus(ctx); err == nil && status.Enforcing {
			return status, nil
		}
	}
	spec := k.spec()
	status := api.Status{
		Device: k.name, Reason: fmt.Sprintf("not attached: %v", problem),
		Diffserv: string(spec.Preset), Split: string(spec.Split), Isolation: string(spec.Isolation), Flows: spec.Flows, Tins: []api.Tin{}, Daemon: os.Getpid(),
	}
	if cfg, err := spec.Resolve(0); err == nil { // a percentage has to wait for the link
		status.Bandwidth = api.BitsPerSec(cfg.Bandwidth)
	}
	return status, nil
}

// kernelStatus is that of what an earlier process left in the kernel.
func (k *keeper) kernelStatus(ctx context.Context) (status api.Status, err error) {
	s, err := k.shapers.Open(k.name)
	if err != nil {
		return api.Status{}, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return s.Status(ctx)
}

// Set is for clients. A device that is being attached, as after a restart, is waited for.
func (k *keeper) Set(ctx context.Context, change config.Change) (api.Changed, error) {
	device, problem := k.attached(ctx)
	if device == nil && errors.Is(problem, errWaiting) {
		return api.Changed{}, &api.Error{Kind: api.KindAwaited, Message: fmt.Sprintf("change %s: %v, and process %d waits for it: change the file, and cakectl apply it", k.name, problem, os.Getpid())}
	}
	if device == nil {
		return api.Changed{}, &api.Error{Kind: api.KindBusy, Message: fmt.Sprintf("change %s: not attached: %v", k.name, problem)}
	}
	changed, err := device.Set(ctx, change)
	if err != nil {
		return changed, err
	}
	// It is to stay so when the device has to be attached again.
	k.mu.Lock()
	defer k.mu.Unlock()
	if wanted, err := k.wanted.Apply(change); err == nil {
		k.wanted = wanted
	}
	return changed, nil
}

// drop is Detach for a device that is in the file no more, and waits until the keeper has ended: whoever is
// told that the device is detached finds it so.
func (k *keeper) drop(ctx context.Context) api.Outcome {
	outcome := api.Outcome{Device: k.name, Result: api.ResultDetached}
	if _, problem := k.state(); errors.Is(problem, errWaiting) {
		outcome.Result = api.ResultGivenUp
	}
	if err := k.Detach(ctx); err != nil {
		outcome.Result, outcome.Error = api.ResultFailed, answerOf(err)
		return outcome
	}
	<-k.ended
	return outcome
}

// Detach is for clients, and for devices that are in the file no more. The keeper ends.
func (k *keeper) Detach(ctx context.Context) error {
	k.mu.Lock()
	k.gone = true
	device, held := k.device, k.held
	k.mu.Unlock()
	if device != nil {
		return device.Detach(ctx)
	}
	k.end()
	if held != nil {
		<-held
	}
	// What another process attached may be there all the same.
	s, err := k.shapers.Open(k.name)
	switch {
	case errors.Is(err, shaper.ErrNotAttached):
		return nil
	case err != nil:
		return err
	}
	return errors.Join(s.Detach(ctx), s.Close())
}
