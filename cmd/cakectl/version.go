// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/cakectl/cakectl/pkg/metrics"
)

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "version",
		Short:             "Print the version",
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		Run: func(*cobra.Command, []string) {
			a.say("%s %s/%s", versionLine(build()), runtime.GOOS, runtime.GOARCH)
		},
	}
}

// module is what this program is part of.
const module = "github.com/cakectl/cakectl"

// What a build does not know of itself.
const (
	versionDevel    = "(devel)"
	revisionUnknown = "unknown"
)

// versionLine says what a build knows of itself.
func versionLine(b metrics.Build) string {
	switch {
	case b.Revision != revisionUnknown:
		return fmt.Sprintf("cakectl %s, revision %s, %s", b.Version, b.Revision, b.GoVersion)
	case b.Version != versionDevel: // from a module proxy, which hands out files only
		return fmt.Sprintf("cakectl %s, %s", b.Version, b.GoVersion)
	default:
		return fmt.Sprintf("cakectl of an unknown version: built without version control (make build stamps it), %s", b.GoVersion)
	}
}

func build() metrics.Build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return buildOf(info)
}

// buildOf is what the Go tool wrote into the binary. A build outside of version control has no revision, but
// the version of the module where it came from a proxy.
func buildOf(info *debug.BuildInfo) metrics.Build {
	b := metrics.Build{Version: versionDevel, Revision: revisionUnknown, GoVersion: runtime.Version()}
	main := &info.Main
	for _, dependency := range info.Deps {
		if dependency.Path == module { // another program's
			main = dependency
		}
	}
	b.Version = cmp.Or(main.Version, b.Version)
	if main != &info.Main {
		return b // and the revision is that program's
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			b.Revision = setting.Value
		}
	}
	return b
}
