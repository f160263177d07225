package probe

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Declaration is a machine by its label: how a Linux host plays a Mac.
type Declaration struct {
	// Chip, such as "M2Ultra".
	Chip string
	// Memory of the machine, in bytes.
	Memory int64
}

var chipName = regexp.MustCompile(`^M[0-9]{1,2}(Pro|Max|Ultra)?$`)

// ParseDeclaration reads "chip=M2Ultra,memory=192Gi".
func ParseDeclaration(s string) (Declaration, error) {
	var d Declaration
	for _, part := range strings.Split(s, ",") {
		key, value, ok := strings.Cut(part, "=")
		switch {
		case ok && key == "chip" && d.Chip == "":
			if !chipName.MatchString(value) {
				return Declaration{}, fmt.Errorf("chip %q is not an Apple chip: write it like M2Ultra or M4", value)
			}
			d.Chip = value
		case ok && key == "memory" && d.Memory == 0:
			q, err := resource.ParseQuantity(value)
			if err != nil || q.Value() <= 0 {
				return Declaration{}, fmt.Errorf("memory %q is not a valid amount: write it like 192Gi", value)
			}
			d.Memory = q.Value()
		default:
			return Declaration{}, fmt.Errorf("cannot parse %q: write chip=M2Ultra,memory=192Gi", part)
		}
	}
	if d.Chip == "" || d.Memory == 0 {
		return Declaration{}, errors.New("chip and memory are both needed: write chip=M2Ultra,memory=192Gi")
	}
	return d, nil
}

// metalShare of the memory is what Metal recommends as working set on Macs of
// this kind: two thirds up to 36 GiB, three quarters above.
func metalShare(total int64) int64 {
	if total <= 36<<30 {
		return total / 3 * 2
	}
	return total / 4 * 3
}

// Declared is a declared host: chip, total and free memory follow from the
// declaration; processes are measured by the system's own probe.
type Declared struct {
	Probe
	declaration Declaration

	mu       sync.Mutex // guards what follows
	foreign  int64
	wired    int64
	isWired  bool
	pressure string
	thermal  string
}

// NewDeclared makes a host as declared, with processes measured by system.
func NewDeclared(d Declaration, system Probe) *Declared {
	return &Declared{Probe: system, declaration: d, pressure: Normal, thermal: Nominal}
}

// SetForeign sets how many bytes the rest of the declared machine uses.
func (d *Declared) SetForeign(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.foreign = max(0, bytes)
}

// SetWired sets how many bytes are wired; until then it is unknown.
func (d *Declared) SetWired(bytes int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wired, d.isWired = max(0, bytes), true
}

// SetPressure sets the system's memory pressure: Normal, Warning or Critical.
func (d *Declared) SetPressure(word string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pressure = word
}

// SetThermal sets the thermal state: Nominal, Fair, Serious or Critical.
func (d *Declared) SetThermal(word string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.thermal = word
}

// Host is the declared memory less what our own engines were measured to hold
// and less what was declared as foreign. Foreign bytes are other programs'
// active pages: the dynamic ceiling counts on a part of them, a load on none.
func (d *Declared) Host(_ context.Context, own int64) (Host, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	total := d.declaration.Memory
	return Host{
		Chip: d.declaration.Chip, Total: total, MetalCap: metalShare(total),
		Free: max(0, total-own-d.foreign), Active: min(d.foreign, max(0, total-own)), Foreign: d.foreign, Used: own + d.foreign,
		Wired: d.wired, WiredKnown: d.isWired, Pressure: d.pressure, Thermal: d.thermal, Simulated: true,
	}, nil
}
