package turn

import (
	"time"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Group is a class with its Macs.
type Group struct {
	Class *v1alpha1.MacClass // nil: the Macs have none
	Macs  []Mac
}

// Release returns what the Macs of the group should run; nil: what they run now.
func (g Group) Release() *v1alpha1.AgentRelease {
	if g.Class == nil {
		return nil
	}
	return g.Class.Spec.Release
}

// Classes divides Macs by their classes, in the order of the classes. A last group has the Macs
// without one.
func Classes(classes []v1alpha1.MacClass, macs []Mac) []Group {
	out := make([]Group, len(classes)+1)
	for i := range classes {
		out[i].Class = &classes[i]
	}
	for _, mac := range macs {
		at := len(classes)
		for i := range classes {
			if classes[i].Name == mac.ClassName() {
				at = i
			}
		}
		out[at].Macs = append(out[at].Macs, mac)
	}
	return out
}

// All decides the next action of each group. Only one Mac of the fleet is upgraded at a time:
// the groups that are busy precede, then the first that may begin.
func All(groups []Group, operator string, now time.Time) []Turn {
	out := make([]Turn, len(groups))
	first := ""
	for i, g := range groups {
		out[i] = Next(g.Class, operator, g.Macs, now)
		if first == "" && out[i].Busy() {
			first = g.Class.Name
		}
	}
	for i := range out {
		switch {
		case first != "" && out[i].Start:
			out[i].Wait(first)
		case out[i].Start:
			first = groups[i].Class.Name
		}
	}
	return out
}
