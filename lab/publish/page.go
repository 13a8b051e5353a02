// SPDX-License-Identifier: BSD-2-Clause

package publish

import (
	_ "embed"
	"errors"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cakectl/cakectl/lab/experiments"
	"github.com/cakectl/cakectl/lab/shaper"
)

//go:embed page.html
var pageText string

// Names of what Write makes.
const (
	pageFile    = "index.html"
	tableFile   = "tables.md"
	resultsFile = "results.json"
	plotsDir    = "plots"
)

// page is what the template takes.
type page struct {
	experiments.Results
	Failure     string
	Published   [][]string
	Experiments []*section
}

// section is about one experiment.
type section struct {
	experiments.Experiment
	Groups []groupView
}

type groupView struct {
	experiments.Group
	Lines    [][]string
	Ahead    []experiments.Explained
	Broken   []string
	Pictures []pictureView
}

type pictureView struct {
	Title, File string
	SVG         template.HTML
}

// Write makes the report in a directory: the page, its pictures, the tables in Markdown, the results.
func Write(dir string, r experiments.Results) error {
	groups, err := experiments.Groups(r.Rows)
	if err != nil {
		return err
	}
	plots := filepath.Join(dir, plotsDir)
	if err := errors.Join(os.RemoveAll(plots), os.MkdirAll(plots, 0o755)); err != nil {
		return err
	}
	view := page{Results: r, Published: experiments.PublishedTable(groups)}
	if err := r.Check(); err != nil {
		view.Failure = err.Error()
	}
	for _, g := range groups {
		i := slices.IndexFunc(view.Experiments, func(s *section) bool { return s.Name == g.Experiment.Name })
		if i < 0 {
			view.Experiments = append(view.Experiments, &section{Experiment: g.Experiment})
			i = len(view.Experiments) - 1
		}
		pictures, err := writePictures(plots, g)
		if err != nil {
			return err
		}
		view.Experiments[i].Groups = append(view.Experiments[i].Groups, groupView{g, g.Table(), experiments.Explain(g.Leads()), g.Broken(), pictures})
	}
	html, err := template.New(pageFile).Funcs(template.FuncMap{"cell": parts}).Parse(pageText)
	if err != nil {
		return err
	}
	var text, tables strings.Builder
	if err := errors.Join(html.Execute(&text, view), experiments.Table(&tables, r.Rows)); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, pageFile), []byte(text.String()), 0o644),
		os.WriteFile(filepath.Join(dir, tableFile), []byte(tables.String()), 0o644),
		r.Write(filepath.Join(dir, resultsFile)),
	)
}

// cell is what stands in a table: a value, and below it in smaller type what is in brackets after it.
type cell struct{ Value, Below string }

func parts(text string) cell {
	value, rest, bracket := strings.Cut(text, " (")
	below, mark, closed := strings.Cut(rest, ")")
	if !bracket || !closed || strings.Contains(mark, "(") {
		return cell{Value: text}
	}
	return cell{value + mark, below}
}

// writePictures draws a group's pictures into files.
func writePictures(dir string, g experiments.Group) (views []pictureView, err error) {
	pictures, err := charts(g)
	if err != nil {
		return nil, err
	}
	for _, p := range pictures {
		svg, err := p.svg()
		if err != nil {
			return nil, err
		}
		png, err := p.png()
		if err != nil {
			return nil, err
		}
		file := filepath.Join(dir, p.name)
		if err := errors.Join(os.WriteFile(file+".svg", svg, 0o644), os.WriteFile(file+".png", png, 0o644)); err != nil {
			return nil, err
		}
		// In a page there is no XML declaration and no document type.
		_, inline, _ := strings.Cut(string(svg), "<svg")
		views = append(views, pictureView{p.title, plotsDir + "/" + p.name, template.HTML("<svg" + inline)})
	}
	return views, nil
}

// Setting says what was run, for people.
func (p page) Setting() string {
	return fmt.Sprintf("%v measured after %v, up to %s of each, shapers interleaved; %s", p.Plan.Duration, p.Plan.Warmup, runsOf(p.Plan.Repeat), p.Time.Format("2006-01-02 15:04 MST"))
}

// CommandLine is what was run.
func (p page) CommandLine() string { return strings.Join(p.Command, " ") }

// Runs says how often the group's shapers were run, but for those that hold no rate.
func (g groupView) Runs() string {
	runs := 0
	for _, r := range g.Rows {
		runs = max(runs, r.Repeat+1)
	}
	return runsOf(runs)
}

func runsOf(n int) string {
	if n == 1 {
		return "1 run"
	}
	return fmt.Sprintf("%d runs", n)
}

// Shapers are those that took part.
func (p page) Shapers() []shaper.Peer {
	return slices.DeleteFunc(shaper.Peers(), func(peer shaper.Peer) bool {
		return !slices.ContainsFunc(p.Rows, func(r experiments.Row) bool { return r.Peer == peer.Name })
	})
}
