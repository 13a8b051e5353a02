// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// metaPackage depends on the newest kernel of its suite. The cloud flavour has
// few drivers, and so boots fastest.
const metaPackage = "linux-image-cloud-amd64"

// archiveKeyring verifies the archive; Debian's package of the same name owns it.
const archiveKeyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// recheck is how long a resolved version is taken for the newest one.
const recheck = 24 * time.Hour

// lane says where a kernel comes from.
type lane struct {
	suites         []string
	securitySuites []string
}

var lanes = map[string]lane{
	"newest": {suites: []string{"trixie-backports"}},
	"6.12":   {suites: []string{"trixie"}, securitySuites: []string{"trixie-security"}},
	"6.1":    {suites: []string{"bookworm"}, securitySuites: []string{"bookworm-security"}},
}

// Lanes returns the names of the kernels that [Run] can boot.
func Lanes() []string {
	return []string{"newest", "6.12", "6.1"}
}

// kernel is an unpacked kernel in the cache.
type kernel struct {
	Release string    `json:"release"` // as uname -r prints it
	Version string    `json:"version"` // of the Debian package
	Checked time.Time `json:"checked"` // when this was the newest version

	dir string // unpacked packages
}

// vmlinuz returns the path of the bootable image.
func (k kernel) vmlinuz() (string, error) {
	return k.find("vmlinuz", "boot/vmlinuz-"+k.Release, "usr/lib/modules/"+k.Release+"/vmlinuz")
}

// modulesDir returns the directory of the modules.
func (k kernel) modulesDir() (string, error) {
	return k.find("modules", "usr/lib/modules/"+k.Release, "lib/modules/"+k.Release)
}

func (k kernel) find(what string, candidates ...string) (string, error) {
	for _, candidate := range candidates {
		path := filepath.Join(k.dir, candidate)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("kernel %s: the packages have no %s at any of %q", k.Release, what, candidates)
}

// fetchFunc puts the newest kernel of a lane into laneDir, unless it is there already.
type fetchFunc func(ctx context.Context, log *slog.Logger, laneDir string, lane lane) (kernel, error)

// ensureKernel returns the lane's kernel from the cache below cacheDir, and
// fetches it when it is missing or may be out of date. Without a network, an
// out-of-date kernel is used.
func ensureKernel(ctx context.Context, log *slog.Logger, cacheDir, laneName string, fetch fetchFunc) (kernel, error) {
	lane, known := lanes[laneName]
	if !known {
		return kernel{}, fmt.Errorf("unknown VM lane %q: there are %s", laneName, strings.Join(Lanes(), ", "))
	}
	laneDir := filepath.Join(cacheDir, laneName)
	if err := os.MkdirAll(laneDir, 0o755); err != nil {
		return kernel{}, fmt.Errorf("make the cache of lane %s: %w", laneName, err)
	}
	unlock, err := lockFile(ctx, filepath.Join(laneDir, "lock"))
	if err != nil {
		return kernel{}, fmt.Errorf("lock the cache of lane %s: %w", laneName, err)
	}
	defer unlock()

	cached, cacheErr := readCached(laneDir)
	if cacheErr == nil && time.Since(cached.Checked) < recheck {
		return cached, nil
	}
	fetched, err := fetch(ctx, log, laneDir, lane)
	switch {
	case err == nil:
		fetched.Checked = time.Now().UTC().Truncate(time.Second)
		if err := writeCached(laneDir, fetched); err != nil {
			return kernel{}, fmt.Errorf("record the kernel of lane %s: %w", laneName, err)
		}
		return fetched, nil
	case cacheErr == nil && ctx.Err() == nil:
		log.Warn("can't look for a newer kernel, using the cached one",
			"lane", laneName, "release", cached.Release, "error", err)
		return cached, nil
	default:
		return kernel{}, fmt.Errorf("fetch the kernel of lane %s: %w", laneName, err)
	}
}

// lockFile waits for an exclusive lock, which ends with the process at the latest.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return nil, errors.Join(err, file.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), file.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

const currentFile = "current.json"

// readCached returns the kernel that the lane's cache holds. The record is
// written after the kernel is in place, so that what it names is complete.
func readCached(laneDir string) (kernel, error) {
	text, err := os.ReadFile(filepath.Join(laneDir, currentFile))
	if err != nil {
		return kernel{}, err
	}
	var k kernel
	if err := json.Unmarshal(text, &k); err != nil {
		return kernel{}, fmt.Errorf("parse %s: %w", currentFile, err)
	}
	k.dir = filepath.Join(laneDir, k.Version)
	if _, err := os.Stat(k.dir); err != nil {
		return kernel{}, err
	}
	return k, nil
}

func writeCached(laneDir string, k kernel) error {
	text, err := json.MarshalIndent(k, "", "\t")
	if err != nil {
		return err
	}
	temporary := filepath.Join(laneDir, currentFile+".new")
	if err := os.WriteFile(temporary, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(laneDir, currentFile))
}

func fetchKernel(ctx context.Context, log *slog.Logger, laneDir string, lane lane) (kernel, error) {
	apt, err := newApt(laneDir, lane)
	if err != nil {
		return kernel{}, err
	}
	if err := apt.update(ctx); err != nil {
		return kernel{}, err
	}
	k, packages, err := apt.resolve(ctx)
	if err != nil {
		return kernel{}, err
	}
	k.dir = filepath.Join(laneDir, k.Version)
	if _, err := os.Stat(k.dir); errors.Is(err, os.ErrNotExist) {
		log.Info("fetching kernel", "release", k.Release, "version", k.Version, "packages", packages)
		if err := apt.unpack(ctx, packages, k.dir); err != nil {
			return kernel{}, err
		}
	}
	if _, err := k.vmlinuz(); err != nil {
		return kernel{}, err
	}
	if _, err := k.modulesDir(); err != nil {
		return kernel{}, err
	}
	return k, nil
}

// apt is a private apt: its own sources, state and cache, and nothing installed.
type apt struct {
	dir     string
	options []string
}

func newApt(laneDir string, lane lane) (*apt, error) {
	mirrors, err := findMirrors("/etc/apt")
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(archiveKeyring); err != nil {
		return nil, fmt.Errorf("no key to verify Debian's archive with (package debian-archive-keyring): %w", err)
	}
	var sources strings.Builder
	add := func(uri string, suites []string) {
		for _, suite := range suites {
			fmt.Fprintf(&sources, "deb [arch=amd64 signed-by=%s] %s %s main\n", archiveKeyring, uri, suite)
		}
	}
	add(mirrors.archive, lane.suites)
	if mirrors.security != "" {
		add(mirrors.security, lane.securitySuites)
	}
	dir, err := filepath.Abs(filepath.Join(laneDir, "apt"))
	if err != nil {
		return nil, err
	}
	for _, sub := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("make the private apt directory: %w", err)
		}
	}
	for name, text := range map[string]string{"sources.list": sources.String(), "status": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, fmt.Errorf("make the private apt directory: %w", err)
		}
	}
	a := &apt{dir: dir}
	for _, option := range []string{
		"Dir::Etc::sourcelist=" + dir + "/sources.list",
		"Dir::Etc::sourceparts=/dev/null",
		"Dir::State=" + dir,
		"Dir::State::status=" + dir + "/status",
		"Dir::Cache=" + dir + "/cache",
		"Acquire::Languages=none",
		"Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
		"Acquire::Retries=3",
		"APT::Architecture=amd64",
		// The cache need not be readable for apt's own user.
		"APT::Sandbox::User=root",
		// Half an update would resolve to an old version without a word.
		"APT::Update::Error-Mode=any",
	} {
		a.options = append(a.options, "-o", option)
	}
	return a, nil
}

func (a *apt) run(ctx context.Context, dir, program string, args ...string) (string, error) {
	return output(ctx, dir, program, append(slices.Clone(a.options), args...)...)
}

func (a *apt) update(ctx context.Context) error {
	_, err := a.run(ctx, a.dir, "apt-get", "-q", "update")
	return err
}

// resolve finds the lane's newest kernel and the packages, as name=version,
// that hold its image, its modules and the list of what is built in.
func (a *apt) resolve(ctx context.Context) (kernel, []string, error) {
	text, err := a.run(ctx, a.dir, "apt-cache", "show", metaPackage)
	if err != nil {
		return kernel{}, nil, err
	}
	k, err := newestKernel(text)
	if err != nil {
		return kernel{}, nil, err
	}
	image := "linux-image-" + k.Release + "=" + k.Version
	if text, err = a.run(ctx, a.dir, "apt-cache", "show", image); err != nil {
		return kernel{}, nil, err
	}
	packages, err := kernelPackages(text, k)
	return k, packages, err
}

var imageDependency = regexp.MustCompile(`\blinux-image-(\d\S*)`)

// newestKernel picks the highest version of the meta-package out of the output of apt-cache show.
func newestKernel(text string) (kernel, error) {
	stanzas := parseStanzas(text)
	if len(stanzas) == 0 {
		return kernel{}, fmt.Errorf("the archive has no %s", metaPackage)
	}
	newest := slices.MaxFunc(stanzas, func(a, b map[string]string) int {
		return compareVersions(a["Version"], b["Version"])
	})
	release := imageDependency.FindStringSubmatch(newest["Depends"])
	if release == nil {
		return kernel{}, fmt.Errorf("%s %s depends on no kernel image but on %q", metaPackage, newest["Version"], newest["Depends"])
	}
	return kernel{Release: release[1], Version: newest["Version"]}, nil
}

// kernelPackages reads off the image package's dependencies how the kernel is
// packaged: newer ones have an image package that is empty and depends on
// linux-binary (the image), linux-modules and linux-base (the built-in list).
func kernelPackages(text string, k kernel) ([]string, error) {
	stanzas := parseStanzas(text)
	if len(stanzas) == 0 {
		return nil, fmt.Errorf("the archive has no linux-image-%s %s", k.Release, k.Version)
	}
	var packages []string
	for _, part := range []string{"linux-binary-", "linux-modules-", "linux-base-"} {
		name := part + k.Release
		if slices.Contains(strings.Fields(stanzas[0]["Depends"]), name) {
			packages = append(packages, name+"="+k.Version)
		}
	}
	if len(packages) == 0 {
		packages = []string{"linux-image-" + k.Release + "=" + k.Version}
	}
	return packages, nil
}

// unpack downloads packages and unpacks them into target, which appears whole or not at all.
func (a *apt) unpack(ctx context.Context, packages []string, target string) (err error) {
	temporary, err := os.MkdirTemp(filepath.Dir(target), ".unpack-")
	if err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	defer func() { err = cmp.Or(err, os.RemoveAll(temporary)) }()
	if _, err := a.run(ctx, temporary, "apt-get", append([]string{"-q", "download"}, packages...)...); err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(temporary, "*.deb"))
	if err != nil {
		return err
	}
	if len(archives) != len(packages) {
		return fmt.Errorf("asked for %d packages, got %d", len(packages), len(archives))
	}
	root := filepath.Join(temporary, "root")
	for _, archive := range archives {
		if _, err := output(ctx, temporary, "dpkg", "-x", archive, root); err != nil {
			return err
		}
	}
	return os.Rename(root, target)
}

// output runs a program and returns its standard output; its standard error
// becomes part of the error.
func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", fmt.Errorf("%s %s: %w: %s", program, args[len(args)-1], err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}
