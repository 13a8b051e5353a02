// SPDX-License-Identifier: BSD-2-Clause

package shaper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"

	"github.com/cakectl/cakectl/lab/topo"
	"github.com/cakectl/cakectl/pkg/rates"
)

// Target is what to shape.
type Target struct {
	topo.Port
	Rate    rates.Rate
	Framing Framing
	// Diffserv is the preset of tins, for the shapers that have tins.
	Diffserv string
	// Cakectl is the path of the program.
	Cakectl string
	// StateDir is an empty directory for files of the shaper.
	StateDir string
}

// Shaped is a device with a shaper on it.
type Shaped interface {
	// SetRate changes the rate under way.
	SetRate(ctx context.Context, rate rates.Rate) error
	// Kill ends the shaper's process by force and leaves the shaping as it is. Shapers without a
	// process do nothing.
	Kill() error
	// Details is what the shaper's own tools say about it, for people to read.
	Details(ctx context.Context) (string, error)
	// Close ends processes and frees what is outside the device, which is to be deleted.
	Close() error
}

// Peer is a kind of shaper.
type Peer struct {
	Name string
	// Shapes tells that the peer holds a rate; the others show what is there without one.
	Shapes bool
	// Commands are what sets it up, for tc(8), as far as tc can.
	Commands []string
	// changes are the commands that change the rate.
	changes []string
	attach  func(ctx context.Context, t Target) (Shaped, error)
}

// Ours is the shaper that the others are beside.
const Ours = "cakectl"

// IsOurs tells that the peer is cakectl, with whatever options.
func (p Peer) IsOurs() bool { return strings.HasPrefix(p.Name, Ours) }

// Peers are all kinds of shapers, in the order in which tables list them.
func Peers() []Peer {
	return []Peer{
		{Name: "none"},
		{Name: "pfifo_fast", Commands: []string{"qdisc add dev $DEV root pfifo_fast"}},
		{Name: "fq", Commands: []string{
			"qdisc add dev $DEV root handle 1: mq",
			"qdisc add dev $DEV parent 1:$QUEUE fq",
		}},
		{Name: "fq_codel", Commands: []string{
			"qdisc add dev $DEV root handle 1: mq",
			"qdisc add dev $DEV parent 1:$QUEUE fq_codel",
		}},
		{
			Name: "htb", Shapes: true,
			Commands: []string{
				"qdisc add dev $DEV root handle 1: htb default 1",
				"class add dev $DEV parent 1: classid 1:1 htb rate $RATE $HTBFRAMING",
			},
			changes: []string{"class change dev $DEV parent 1: classid 1:1 htb rate $RATE $HTBFRAMING"},
		},
		{
			Name: "htb+fq_codel", Shapes: true,
			Commands: []string{
				"qdisc add dev $DEV root handle 1: htb default 1",
				"class add dev $DEV parent 1: classid 1:1 htb rate $RATE $HTBFRAMING",
				"qdisc add dev $DEV parent 1:1 fq_codel",
			},
			changes: []string{"class change dev $DEV parent 1: classid 1:1 htb rate $RATE $HTBFRAMING"},
		},
		{
			Name: "cake", Shapes: true,
			Commands: []string{"qdisc add dev $DEV root cake bandwidth $RATE $DIFFSERV $FRAMING"},
			changes:  []string{"qdisc change dev $DEV root cake bandwidth $RATE $DIFFSERV $FRAMING"},
		},
		{
			Name: "cake_mq", Shapes: true,
			Commands: []string{"qdisc add dev $DEV root cake_mq bandwidth $RATE $DIFFSERV $FRAMING"},
			attach:   attachCakeMQ,
		},
		{
			Name: "cake-nosplit", Shapes: true,
			Commands: []string{"qdisc add dev $DEV root cake bandwidth $RATE $DIFFSERV no-split-gso"},
			changes:  []string{"qdisc change dev $DEV root cake bandwidth $RATE $DIFFSERV no-split-gso"},
		},
		{
			// One clock for everything.
			Name: "edt", Shapes: true,
			Commands: []string{
				"qdisc add dev $DEV root handle 1: mq",
				"qdisc add dev $DEV parent 1:$QUEUE fq horizon 2s",
			},
			attach: attachEDT,
		},
		{
			Name: "cakectl", Shapes: true,
			attach: attachCakectl,
		},
		{
			Name: "cakectl-uncapped", Shapes: true,
			attach: attachUncapped,
		},
	}
}

// Lookup finds a kind of shaper by its name.
func Lookup(name string) (Peer, error) {
	var names []string
	for _, p := range Peers() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Peer{}, fmt.Errorf("no shaper %q (there are: %s)", name, strings.Join(names, ", "))
}

// Attach shapes the target.
func (p Peer) Attach(ctx context.Context, t Target) (Shaped, error) {
	if p.attach != nil {
		s, err := p.attach(ctx, t)
		if err != nil {
			return nil, fmt.Errorf("attach %s: %w", p.Name, err)
		}
		return s, nil
	}
	s := byTC{peer: p, target: t}
	if err := s.run(ctx, p.Commands, t.Rate); err != nil {
		return nil, fmt.Errorf("attach %s: %w", p.Name, err)
	}
	return s, nil
}

// byTC is a shaper of the kernel that tc(8) sets up. It goes with its device.
type byTC struct {
	peer   Peer
	target Target
}

func (s byTC) SetRate(ctx context.Context, rate rates.Rate) error {
	if len(s.peer.changes) == 0 {
		return fmt.Errorf("%s has no rate to change: %w", s.peer.Name, errors.ErrUnsupported)
	}
	if err := s.run(ctx, s.peer.changes, rate); err != nil {
		return fmt.Errorf("change the rate of %s: %w", s.peer.Name, err)
	}
	return nil
}

func (s byTC) Details(ctx context.Context) (string, error) { return qdiscs(ctx, s.target) }

func (byTC) Kill() error  { return nil }
func (byTC) Close() error { return nil }

// qdiscs is what tc shows of the device.
func qdiscs(ctx context.Context, t Target) (string, error) {
	text, err := exec.CommandContext(ctx, "tc", "-n", t.Namespace.Name, "-s", "qdisc", "show", "dev", t.Device).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("tc qdisc show: %w: %s", err, bytes.TrimSpace(text))
	}
	return string(text), nil
}

// run runs commands in one tc, those with $QUEUE once for each queue.
func (s byTC) run(ctx context.Context, commands []string, rate rates.Rate) error {
	if len(commands) == 0 {
		return nil
	}
	var batch strings.Builder
	for _, command := range commands {
		queues := 1
		if strings.Contains(command, "$QUEUE") {
			queues = s.target.Queues
		}
		for queue := range queues {
			batch.WriteString(strings.NewReplacer(
				"$DEV", s.target.Device,
				"$RATE", strconv.FormatUint(uint64(rate), 10)+"bit",
				"$DIFFSERV", s.target.Diffserv,
				"$FRAMING", s.target.Framing.cake(),
				"$HTBFRAMING", s.target.Framing.htb(),
				"$QUEUE", strconv.FormatInt(int64(queue)+1, 16),
			).Replace(command) + "\n")
		}
	}
	cmd := exec.CommandContext(ctx, "tc", "-n", s.target.Namespace.Name, "-batch", "-")
	cmd.Stdin = strings.NewReader(batch.String())
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("tc: %w: %s; commands:\n%s", err, bytes.TrimSpace(output.Bytes()), batch.String())
	}
	return nil
}
