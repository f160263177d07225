package route

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Name is a name that clients may use.
type Name struct {
	Name  string
	Model *Model
	// Adapter of the model that the name selects; empty for the model alone.
	Adapter string
}

// names is the index of names. Every NAMESPACE/NAME, and NAMESPACE/NAME:ADAPTER, belongs to
// its own deployment, and each other name to the oldest deployment whose status claims it.
// A change costs a time for the names of its deployment, however many others there are.
type names struct {
	// found has what clients find, a Name by its string, once public is set. Its readers take
	// no lock.
	found  sync.Map
	listed atomic.Pointer[[]Name] // nil after a change

	// Guarded by the table's mu.
	public bool
	named  map[string]*claims
	of     map[Key]*claimant
}

// claimant is a deployment as it was indexed.
type claimant struct {
	Deployment
	model *Model
}

func (c *claimant) compare(o *claimant) int {
	return cmp.Or(cmp.Compare(c.Created, o.Created), strings.Compare(c.Key.String(), o.Key.String()))
}

// claims are those on one name.
type claims struct {
	owner *claimant // the deployment whose NAMESPACE/NAME it is
	// others claim the name, the oldest first.
	others []*claimant
}

func (c *claims) find(of *claimant) (at int, found bool) {
	return slices.BinarySearchFunc(c.others, of, (*claimant).compare)
}

func newNames() *names { return &names{named: map[string]*claims{}, of: map[Key]*claimant{}} }

// full returns the names that are a deployment's own.
func (c *claimant) full() []Name {
	out := []Name{{c.Key.String(), c.model, ""}}
	for adapter := range strings.SplitSeq(c.Adapters, "\n") {
		if adapter != "" {
			out = append(out, Name{c.Key.String() + ":" + adapter, c.model, adapter})
		}
	}
	return out
}

// set indexes a deployment, in place of its earlier version.
func (n *names) set(d Deployment, m *Model) {
	changed := n.remove(d.Key)
	c := &claimant{d, m}
	n.of[d.Key] = c
	for _, own := range c.full() {
		n.at(own.Name).owner = c
		changed = append(changed, own.Name)
	}
	for name := range strings.SplitSeq(c.Names, "\n") {
		if name == "" {
			continue
		}
		on := n.at(name)
		if at, found := on.find(c); !found {
			on.others = slices.Insert(on.others, at, c)
		}
		changed = append(changed, name)
	}
	n.publish(changed)
}

// delete removes a deployment.
func (n *names) delete(key Key) { n.publish(n.remove(key)) }

// remove removes the claims of a deployment, and returns the names.
func (n *names) remove(key Key) (changed []string) {
	c, known := n.of[key]
	if !known {
		return nil
	}
	delete(n.of, key)
	for _, own := range c.full() {
		n.at(own.Name).owner = nil
		changed = append(changed, own.Name)
	}
	for name := range strings.SplitSeq(c.Names, "\n") {
		if name == "" {
			continue
		}
		on := n.at(name)
		if at, found := on.find(c); found {
			on.others = slices.Delete(on.others, at, at+1)
		}
		changed = append(changed, name)
	}
	return changed
}

// at returns the claims on a name.
func (n *names) at(name string) *claims {
	c := n.named[name]
	if c == nil {
		c = &claims{}
		n.named[name] = c
	}
	return c
}

// publish shows clients what became of names.
func (n *names) publish(changed []string) {
	for _, name := range changed {
		c := n.named[name]
		switch {
		case c == nil: // it is in the list twice
		case c.owner == nil && len(c.others) == 0:
			delete(n.named, name)
			n.found.Delete(name)
		case !n.public:
		case c.owner != nil:
			adapter := strings.TrimPrefix(strings.TrimPrefix(name, c.owner.Key.String()), ":")
			n.found.Store(name, Name{name, c.owner.model, adapter})
		default:
			n.found.Store(name, Name{name, c.others[0].model, c.others[0].adapterOf(name)})
		}
	}
	n.listed.Store(nil)
}

// publishAll shows clients all names.
func (n *names) publishAll() {
	n.public = true
	for name := range n.named {
		n.publish([]string{name})
	}
}

// find returns what a name refers to. It needs no lock.
func (n *names) find(name string) (Name, bool) {
	v, ok := n.found.Load(name)
	if !ok {
		return Name{}, false
	}
	return v.(Name), true
}

// list returns the names to list for clients, sorted.
func (n *names) list() []Name {
	out := []Name{}
	if n.public {
		for _, c := range n.of {
			out = append(out, n.listOf(c)...)
		}
	}
	slices.SortFunc(out, func(a, b Name) int { return strings.Compare(a.Name, b.Name) })
	n.listed.Store(&out)
	return out
}

// listOf returns the names of a deployment to list: those that it has apart from its own, or
// its own.
func (n *names) listOf(c *claimant) (out []Name) {
	for name := range strings.SplitSeq(c.Names, "\n") {
		on := n.named[name]
		if on == nil || on.owner != nil || on.others[0].Key != c.Key {
			continue
		}
		if one := (Name{name, c.model, c.adapterOf(name)}); !slices.Contains(out, one) {
			out = append(out, one)
		}
	}
	if len(out) == 0 {
		return c.full()
	}
	return out
}
