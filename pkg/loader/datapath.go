// SPDX-License-Identifier: BSD-2-Clause

package loader

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// LayoutVersion is the version of the maps' layout (LAYOUT_VERSION in bpf/types.h). Maps of another
// version are not adopted.
const LayoutVersion = 3

const (
	// MaxTins is the number of tins the maps have room for; cells of a queue lie MaxTins apart.
	MaxTins = 8
	// FlowWays is the associativity of the flow table.
	FlowWays = 8
	// hostSets is the size of the table of hosts of each tin and direction, in sets of FlowWays.
	hostSets = 128
	// DefaultFlows is the size of the flow table of each (queue, tin).
	DefaultFlows = 1024
)

const (
	programPin = "program"
	// LinkPin is the name under which [DataPath.PinLink] pins the tcx link.
	LinkPin = "link"

	// A BPF file system takes no dots in names.
	buildingSuffix = "%new"
)

var (
	// ErrNotPinned is returned by [Open] where nothing, or not all of a data path, is pinned.
	ErrNotPinned = errors.New("no pinned data path")
	// ErrLayout is returned by [Open] for a data path that another version of the program made.
	ErrLayout = errors.New("pinned maps have another layout")
)

// Options are what cannot change while a data path lives.
type Options struct {
	// Queues is the number of transmit queues that the maps get room for.
	Queues int
	// Tins is the number of tins of the preset, 1 to [MaxTins].
	Tins int
	// Flows is the size of the flow table of each (queue, tin): a power of two from [FlowWays]
	// up; 0 is [DefaultFlows].
	Flows int
	// LinkHeaderBytes is the length of the link layer's header at the egress hook: 14 for
	// Ethernet, 0 for devices without a link layer.
	LinkHeaderBytes int
}

// FlowTableBytes is the memory for the flow tables of all queues and tins.
func (o Options) FlowTableBytes() int {
	return o.Queues * o.Tins * o.Flows / FlowWays * binary.Size(dataPathFlowSet{})
}

func (o Options) check() error {
	switch {
	case o.Queues < 1 || o.Queues > math.MaxUint16-1:
		return fmt.Errorf("%d transmit queues: need 1 to %d", o.Queues, math.MaxUint16-1)
	case o.Tins < 1 || o.Tins > MaxTins:
		return fmt.Errorf("%d tins: need 1 to %d", o.Tins, MaxTins)
	case o.Flows < FlowWays || o.Flows&(o.Flows-1) != 0:
		return fmt.Errorf("%d flows a tin and queue: need a power of two, at least %d", o.Flows, FlowWays)
	}
	return nil
}

// variables are the maps that hold a variable of the program each, at key 0.
type variables struct {
	Calendar *ebpf.Map `ebpf:".data.calendar"`
	Config   *ebpf.Map `ebpf:".data.config"`
	Device   *ebpf.Map `ebpf:".data.device"`
}

// variablePrefix is what the names of these maps have and those of their pins have not.
const variablePrefix = ".data."

// objects are all that the kernel has of a data path.
type objects struct {
	dataPathPrograms
	dataPathMaps
	variables
}

// DataPath is the program and the maps of one device.
type DataPath struct {
	objects objects
	tcx     link.Link // nil unless attached by tcx
	queues  int

	// Buffers of Active, which is called for each event.
	reading   sync.Mutex
	shardKeys []uint32
	shards    []dataPathShard
}

// Load puts a new data path into the kernel. Nothing is attached or pinned yet, so closing it leaves
// no trace.
func Load(options Options) (*DataPath, error) {
	d := &DataPath{queues: options.Queues}
	if err := d.load(options, nil); err != nil {
		return nil, err
	}
	return d, nil
}

// load loads the program, with maps of its own or with those that are there already.
func (d *DataPath) load(options Options, maps map[string]**ebpf.Map) error {
	if options.Flows == 0 {
		options.Flows = DefaultFlows
	}
	if err := options.check(); err != nil {
		return err
	}
	// Kernels before 5.11 account maps against RLIMIT_MEMLOCK.
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("lift the limit on locked memory: %w", err)
	}
	spec, err := loadDataPath()
	if err != nil {
		return err
	}
	if err := size(spec, options); err != nil {
		return err
	}
	replacements := map[string]*ebpf.Map{}
	for name, m := range maps {
		replacements[name] = *m
	}
	if err := spec.LoadAndAssign(&d.objects, &ebpf.CollectionOptions{MapReplacements: replacements}); err != nil {
		return fmt.Errorf("load the data path: %w", err)
	}
	return nil
}

// size fits the maps and the constants to the device.
func size(spec *ebpf.CollectionSpec, options Options) error {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("count the possible CPUs: %w", err)
	}
	queues := uint32(options.Queues)
	sets := uint32(options.Flows / FlowWays)
	spec.Maps[dataPathMapXps].MaxEntries = uint32(cpus)
	spec.Maps[dataPathMapCells].MaxEntries = queues * MaxTins
	spec.Maps[dataPathMapShards].MaxEntries = queues * MaxTins
	spec.Maps[dataPathMapShardEnds].MaxEntries = queues * MaxTins
	spec.Maps[dataPathMapQueueStats].MaxEntries = queues
	spec.Maps[dataPathMapHostTable].MaxEntries = uint32(options.Tins) * 2 * hostSets
	spec.Maps[dataPathMapFlows].MaxEntries = queues * uint32(options.Tins) * sets

	for name, value := range map[string]any{
		dataPathVarFlowSets:        sets,
		dataPathVarHashSeed:        rand.Uint32(),
		dataPathVarTinCount:        uint32(options.Tins),
		dataPathVarLinkHeaderBytes: uint32(options.LinkHeaderBytes),
		dataPathVarHasKernelCtx:    haveKernelContext(),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set the program's constant %s: %w", name, err)
		}
	}
	return nil
}

// haveKernelContext reports whether this kernel lets a program look into its sk_buff (6.2).
func haveKernelContext() bool {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return false
	}
	var fn *btf.Func
	return kernel.TypeByName("bpf_cast_to_kern_ctx", &fn) == nil
}

// pinPath is where a map is pinned, by its name in the object.
func pinPath(dir, name string) string {
	return filepath.Join(dir, strings.TrimPrefix(name, variablePrefix))
}

// pinned lists every map that is pinned, by its name in the object.
func (d *DataPath) pinned() map[string]**ebpf.Map {
	m := &d.objects
	return map[string]**ebpf.Map{
		variablePrefix + "calendar": &m.Calendar,
		variablePrefix + "config":   &m.Config,
		variablePrefix + "device":   &m.Device,
		dataPathMapBypassed:         &m.Bypassed,
		dataPathMapCells:            &m.Cells,
		dataPathMapController:       &m.Controller,
		dataPathMapEvents:           &m.Events,
		dataPathMapFlows:            &m.Flows,
		dataPathMapHostTable:        &m.HostTable,
		dataPathMapHostsMet:         &m.HostsMet,
		dataPathMapLeases:           &m.Leases,
		dataPathMapForeseen:         &m.Foreseen,
		dataPathMapForesight:        &m.Foresight,
		dataPathMapMarkToTin:        &m.MarkToTin,
		dataPathMapQueueStats:       &m.QueueStats,
		dataPathMapScratch:          &m.Scratch,
		dataPathMapShards:           &m.Shards,
		dataPathMapShardEnds:        &m.ShardEnds,
		dataPathMapSweeperMap:       &m.SweeperMap,
		dataPathMapTinStats:         &m.TinStats,
		dataPathMapXps:              &m.Xps,
	}
}

// Pin makes the data path outlive the process. The pins appear all at once, in place of any that are
// there.
func (d *DataPath) Pin(dir string) error {
	building, err := d.build(dir)
	if err != nil {
		return err
	}
	if err := exchange(building, dir); err != nil {
		return errors.Join(err, os.RemoveAll(building))
	}
	return nil
}

// Pinned tells whether all the pins of the data path, that of its link too, are in dir.
func (d *DataPath) Pinned(dir string) (bool, error) {
	names := append(slices.Collect(maps.Keys(d.pinned())), programPin)
	if d.tcx != nil {
		names = append(names, LinkPin)
	}
	for _, name := range names {
		_, err := os.Stat(pinPath(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("look for pins: %w", err)
		}
	}
	return true, nil
}

// build makes the pins, without the link's, in a directory beside dir.
func (d *DataPath) build(dir string) (building string, err error) {
	building = dir + buildingSuffix
	if err := os.RemoveAll(building); err != nil {
		return "", fmt.Errorf("clear what an earlier attempt left of pins: %w", err)
	}
	if err := os.MkdirAll(building, 0o750); err != nil {
		return "", fmt.Errorf("make the directory for pins: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(building))
		}
	}()
	// Of copies: an object that remembers where it was pinned is moved from there, or not pinned at all.
	for name, m := range d.pinned() {
		copied, err := (*m).Clone()
		if err == nil {
			err = errors.Join(copied.Pin(pinPath(building, name)), copied.Close())
		}
		if err != nil {
			return "", fmt.Errorf("pin map %s: %w", name, err)
		}
	}
	program, err := d.objects.CakectlEgress.Clone()
	if err == nil {
		err = errors.Join(program.Pin(filepath.Join(building, programPin)), program.Close())
	}
	if err != nil {
		return "", fmt.Errorf("pin the program: %w", err)
	}
	return building, nil
}

// exchange puts a directory of pins into its place and removes what was there.
func exchange(building, dir string) error {
	err := unix.Renameat2(unix.AT_FDCWD, building, unix.AT_FDCWD, dir, unix.RENAME_EXCHANGE)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = os.Rename(building, dir)
	case err == nil:
		err = os.RemoveAll(building)
	}
	if err != nil {
		return fmt.Errorf("put the pins in place: %w", err)
	}
	return nil
}

// Open takes over the data path pinned in dir. It returns [ErrNotPinned] where there is none and
// [ErrLayout] where this version cannot read it.
func Open(dir string) (*DataPath, error) {
	spec, err := loadDataPath()
	if err != nil {
		return nil, err
	}
	d := &DataPath{}
	opened := false
	defer func() {
		if !opened {
			d.Close()
		}
	}()
	if err := d.openProgram(dir); err != nil {
		return nil, err
	}
	for name, m := range d.pinned() {
		*m, err = ebpf.LoadPinnedMap(pinPath(dir, name), nil)
		if errors.Is(err, fs.ErrNotExist) {
			// Pins appear all at once: whoever made these has no such map.
			return nil, fmt.Errorf("map %s in %s: %w", name, dir, ErrLayout)
		}
		if err != nil {
			return nil, fmt.Errorf("open pinned map %s: %w", name, err)
		}
		if want := spec.Maps[name]; (*m).Type() != want.Type || want.Type != ebpf.RingBuf && (*m).ValueSize() != want.ValueSize {
			return nil, fmt.Errorf("map %s in %s: %w", name, dir, ErrLayout)
		}
	}
	var config dataPathDeviceConfig
	if err := d.objects.Config.Lookup(uint32(0), &config); err != nil {
		return nil, fmt.Errorf("read the layout version of pinned maps: %w", err)
	}
	if config.LayoutVersion != LayoutVersion {
		return nil, fmt.Errorf("layout %d in %s, this program knows %d: %w", config.LayoutVersion, dir, LayoutVersion, ErrLayout)
	}
	d.queues = int(d.objects.QueueStats.MaxEntries())
	opened = true
	return d, nil
}

// Unpin removes what [DataPath.Pin] made in dir, and what an interrupted Pin left. It is no error if
// nothing is there.
func Unpin(dir string) error {
	if err := errors.Join(os.RemoveAll(dir), os.RemoveAll(dir+buildingSuffix)); err != nil {
		return fmt.Errorf("remove pins: %w", err)
	}
	return nil
}

// Close lets go of the data path. What is pinned or attached by clsact stays in the kernel; a tcx
// link that is not pinned detaches.
func (d *DataPath) Close() error {
	errs := []error{}
	for _, m := range d.pinned() {
		if *m != nil {
			errs = append(errs, (*m).Close())
		}
	}
	if d.objects.CakectlEgress != nil {
		errs = append(errs, d.objects.CakectlEgress.Close())
	}
	if d.tcx != nil {
		errs = append(errs, d.tcx.Close())
	}
	return errors.Join(errs...)
}

// Queues is the number of transmit queues that the maps have room for.
func (d *DataPath) Queues() int { return d.queues }

// PinLink makes a tcx link outlive the process, beside the pins of [DataPath.Pin] and in place of a
// link that is pinned there. A clsact filter does by itself.
func (d *DataPath) PinLink(dir string) error {
	if d.tcx == nil {
		return nil
	}
	pin := filepath.Join(dir, LinkPin)
	err := os.RemoveAll(pin + buildingSuffix)
	if err == nil {
		err = d.tcx.Unpin() // which has it forget where it was pinned
	}
	if err == nil {
		err = d.tcx.Pin(pin + buildingSuffix)
	}
	if err == nil {
		err = os.Rename(pin+buildingSuffix, pin)
	}
	if err != nil {
		return fmt.Errorf("pin the tcx link: %w", err)
	}
	return nil
}
