// SPDX-License-Identifier: BSD-2-Clause

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cakectl/cakectl/pkg/api"
	"github.com/cakectl/cakectl/pkg/config"
	"github.com/cakectl/cakectl/pkg/metrics"
	"github.com/cakectl/cakectl/pkg/rates"
	"github.com/cakectl/cakectl/pkg/shaper"
	"github.com/cakectl/cakectl/pkg/tins"
)

// fakeShapers are devices that can all be attached. What they model is anchored as that of cmd/cakectl's
// fakeHost: an attached device refuses what its Spec cannot be changed to, and Run lasts until its
// context ends, or until the device is lost.
type fakeShapers struct {
	attached chan config.Spec // by whom it is attached with what
	lost     chan error
	spec     config.Spec
}

func (f *fakeShapers) Attach(_ context.Context, spec config.Spec) (Shaped, error) {
	f.spec = spec
	f.attached <- spec
	return &fakeShaped{fakeShapers: f}, nil
}
func (f *fakeShapers) Plan(context.Context, config.Spec) (shaper.Preview, error) {
	return shaper.Preview{}, nil
}
func (f *fakeShapers) Open(string) (Shaped, error)               { return nil, shaper.ErrNotAttached }
func (f *fakeShapers) List() ([]string, error)                   { return nil, nil }
func (f *fakeShapers) Recorded(device string) (string, error)    { return device, nil }
func (f *fakeShapers) Stopped(string) int                        { return 0 }
func (f *fakeShapers) Controller(string) int                     { return 0 }
func (f *fakeShapers) Await(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }

type fakeShaped struct {
	Shaped
	*fakeShapers
}

func (f *fakeShaped) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-f.lost:
		return err
	}
}
func (f *fakeShaped) OnReaction(func(time.Duration)) {}
func (f *fakeShaped) Spec() config.Spec              { return f.spec }
func (f *fakeShaped) Adopted() bool                  { return false }
func (f *fakeShaped) Detach(context.Context) error   { return nil }
func (f *fakeShaped) Close() error                   { return nil }

// TestRefusedSpecIsForgotten: what an attached device refuses is not what it is attached with when it
// has to be again.
func TestRefusedSpecIsForgotten(t *testing.T) {
	shapers := &fakeShapers{attached: make(chan config.Spec, 1), lost: make(chan error)}
	ctx, end := context.WithCancel(t.Context())
	d := New(ctx, filepath.Join(t.TempDir(), "run"), 1, shapers, metrics.Build{}, slog.New(slog.DiscardHandler))
	defer d.Wait()
	defer end()
	spec := config.New("dev0", rates.Absolute(rates.Gbit))
	apply := func(spec config.Spec, want api.Result) {
		t.Helper()
		outcomes, err := d.Apply(t.Context(), []config.Spec{spec})
		if err != nil || len(outcomes) != 1 || outcomes[0].Result != want {
			t.Fatalf("apply: %+v, %v, want %v", outcomes, err, want)
		}
	}
	apply(spec, api.ResultAttached)
	<-shapers.attached
	refused := spec
	refused.Preset = tins.BestEffort
	apply(refused, api.ResultFailed)

	shapers.lost <- errors.New("lost")
	if got := <-shapers.attached; fmt.Sprint(got) != fmt.Sprint(spec) {
		t.Errorf("attached again with %+v, want %+v", got, spec)
	}
}

// TestServedByAnother: what to do about another process that serves a device is told.
func TestServedByAnother(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	claim, err := api.Listen(dir, "dev0")
	if err != nil {
		t.Fatal(err)
	}
	defer claim.Close()
	ctx, end := context.WithCancel(t.Context())
	d := New(ctx, dir, 1, &fakeShapers{}, metrics.Build{}, slog.New(slog.DiscardHandler))
	defer d.Wait()
	defer end()
	outcomes, err := d.Apply(t.Context(), []config.Spec{config.New("dev0", rates.Absolute(rates.Gbit))})
	if err != nil || len(outcomes) != 1 || outcomes[0].Result != api.ResultFailed {
		t.Fatalf("apply: %+v, %v", outcomes, err)
	}
	const want = "cakectl status dev0 names it; serve takes the device when that ends"
	if got := outcomes[0].Error.Message; !strings.Contains(got, want) {
		t.Errorf("got %q, want %q in it", got, want)
	}
}
