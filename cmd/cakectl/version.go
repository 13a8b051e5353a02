// SPDX-License-Identifier: BSD-2-Clause

package main

import (
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
			b := build()
			a.say("cakectl %s, revision %s, %s %s/%s", b.Version, b.Revision, b.GoVersion, runtime.GOOS, runtime.GOARCH)
		},
	}
}

// build is what the Go tool wrote into the binary; a build outside of version control has no revision.
func build() metrics.Build {
	b := metrics.Build{Version: "(devel)", Revision: "unknown", GoVersion: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			b.Revision = setting.Value
		}
	}
	return b
}
