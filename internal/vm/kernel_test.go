// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestNewestKernel(t *testing.T) {
	t.Parallel()
	const text = `Package: linux-image-cloud-amd64
Version: 7.9.1-1~bpo13+1
Depends: linux-image-7.9.1+deb13-cloud-amd64 (= 7.9.1-1~bpo13+1)

Package: linux-image-cloud-amd64
Version: 7.10.2-1~bpo13+1
Description: a continued
 field
Depends: linux-base-cloud-amd64 (= 7.10.2-1~bpo13+1), linux-image-7.10.2+deb13-cloud-amd64 (= 7.10.2-1~bpo13+1)

Package: linux-image-cloud-amd64
Version: 6.12.117-1
Depends: linux-image-6.12.117+deb13-cloud-amd64 (= 6.12.117-1)
`
	k, err := newestKernel(text)
	if err != nil {
		t.Fatal(err)
	}
	if k.Release != "7.10.2+deb13-cloud-amd64" || k.Version != "7.10.2-1~bpo13+1" {
		t.Errorf("got %s of version %s", k.Release, k.Version)
	}
	for _, bad := range []string{"", "Package: linux-image-cloud-amd64\nVersion: 1\nDepends: something-else\n"} {
		if k, err := newestKernel(bad); err == nil {
			t.Errorf("%q gave %+v", bad, k)
		}
	}
}

func TestKernelPackages(t *testing.T) {
	t.Parallel()
	k := kernel{Release: "7.3.4+deb13-cloud-amd64", Version: "7.3.4-1"}
	tests := []struct {
		name, depends string
		want          []string
	}{
		{
			"split", "linux-initramfs-tool, linux-base-7.3.4+deb13-cloud-amd64 (= 7.3.4-1), linux-binary-7.3.4+deb13-cloud-amd64 (= 7.3.4-1), linux-modules-7.3.4+deb13-cloud-amd64 (= 7.3.4-1)",
			[]string{"linux-binary-7.3.4+deb13-cloud-amd64=7.3.4-1", "linux-modules-7.3.4+deb13-cloud-amd64=7.3.4-1", "linux-base-7.3.4+deb13-cloud-amd64=7.3.4-1"},
		},
		{"whole", "kmod, linux-base (>= 4.3~)", []string{"linux-image-7.3.4+deb13-cloud-amd64=7.3.4-1"}},
	}
	for _, test := range tests {
		got, err := kernelPackages("Package: x\nDepends: "+test.depends+"\n", k)
		if err != nil || !slices.Equal(got, test.want) {
			t.Errorf("%s: got %q, %v, want %q", test.name, got, err, test.want)
		}
	}
}

func TestEnsureKernelCache(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	fetches := 0
	fetch := func(version string, failure error) fetchFunc {
		return func(_ context.Context, _ *slog.Logger, laneDir string, _ lane) (kernel, error) {
			fetches++
			if failure != nil {
				return kernel{}, failure
			}
			k := kernel{Release: version, Version: version, dir: filepath.Join(laneDir, version)}
			return k, os.MkdirAll(k.dir, 0o755)
		}
	}
	offline := errors.New("no network")
	ensure := func(fetch fetchFunc) (kernel, error) {
		return ensureKernel(t.Context(), slog.New(slog.DiscardHandler), cache, "newest", fetch)
	}
	age := func() {
		k, err := readCached(filepath.Join(cache, "newest"))
		if err != nil {
			t.Fatal(err)
		}
		k.Checked = k.Checked.Add(-recheck)
		if err := writeCached(filepath.Join(cache, "newest"), k); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := ensure(fetch("", offline)); !errors.Is(err, offline) {
		t.Errorf("an empty cache without a network: got error %v", err)
	}
	steps := []struct {
		name        string
		prepare     func()
		fetch       fetchFunc
		wantVersion string
		wantFetches int
	}{
		{"first", func() {}, fetch("1", nil), "1", 1},
		{"again on the same day", func() {}, fetch("2", nil), "1", 0},
		{"next day without a network", age, fetch("2", offline), "1", 1},
		{"still without a network", func() {}, fetch("2", offline), "1", 1},
		{"next day", func() {}, fetch("2", nil), "2", 1},
		{"kernel lost from the cache", func() {
			if err := os.RemoveAll(filepath.Join(cache, "newest", "2")); err != nil {
				t.Fatal(err)
			}
		}, fetch("2", nil), "2", 1},
	}
	for _, step := range steps {
		step.prepare()
		fetches = 0
		k, err := ensure(step.fetch)
		if err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if k.Version != step.wantVersion || fetches != step.wantFetches {
			t.Errorf("%s: version %s after %d fetches, want %s after %d", step.name, k.Version, fetches, step.wantVersion, step.wantFetches)
		}
		if _, err := os.Stat(k.dir); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
	}
}

func TestEnsureKernelUnknownLane(t *testing.T) {
	t.Parallel()
	if _, err := ensureKernel(t.Context(), slog.New(slog.DiscardHandler), t.TempDir(), "2.6", nil); err == nil {
		t.Error("lane 2.6 was found")
	}
}

func TestLanesAreKnown(t *testing.T) {
	t.Parallel()
	if len(Lanes()) != len(lanes) {
		t.Errorf("Lanes() has %d names for %d lanes", len(Lanes()), len(lanes))
	}
	for _, name := range Lanes() {
		if _, known := lanes[name]; !known {
			t.Errorf("no lane %q", name)
		}
	}
}

func TestLockFileExcludes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := lockFile(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lockFile(ended, path); !errors.Is(err, context.Canceled) {
		t.Errorf("a second lock beside the first: %v", err)
	}
	unlock()
	unlock, err = lockFile(ended, path)
	if err != nil {
		t.Fatalf("a lock that nobody holds: %v", err)
	}
	unlock()
}
