package main

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// loads counts the engines that each replica was given, by what Macs report, and
// how many of them were taken from it.
type loads struct {
	mu      sync.Mutex // guards what follows
	engines map[string]map[string]bool
	killed  map[string]int
}

func newLoads() *loads {
	return &loads{engines: map[string]map[string]bool{}, killed: map[string]int{}}
}

// look notes the engines of a Mac.
func (l *loads) look(mac *v1alpha1.MacNode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range mac.Status.Assignments {
		if a.PID == 0 {
			continue
		}
		if l.engines[a.ReplicaUID] == nil {
			l.engines[a.ReplicaUID] = map[string]bool{}
		}
		l.engines[a.ReplicaUID][fmt.Sprintf("%s/%d", mac.Name, a.PID)] = true
	}
}

// kill notes that an engine of a replica was killed.
func (l *loads) kill(uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.killed[uid]++
}

// judge wants each replica to have been loaded once, and once more for each of
// its engines that was killed. It returns how many loads there were.
func (l *loads) judge() (total int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(l.engines)) {
		n := len(l.engines[uid])
		total += n
		if most := 1 + l.killed[uid]; n > most && err == nil {
			err = fmt.Errorf("replica %s was loaded %d times, though %d of its engines were killed: %v", uid, n, l.killed[uid], slices.Sorted(maps.Keys(l.engines[uid])))
		}
	}
	return total, err
}
