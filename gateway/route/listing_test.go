package route

import (
	"fmt"
	"iter"
	"runtime"
	"testing"
	"testing/synctest"
	"time"
	"weak"
)

// longList returns a table of more names than a short list has, and one of its deployments.
func longList() (*Table, Deployment) {
	table := NewTable()
	d := Deployment{Key: Key{"ns", "d"}, UID: "d", Names: "name"}
	for i := range 5000 {
		other := Deployment{Key: Key{"ns", fmt.Sprint("d", i)}, UID: fmt.Sprint(i), Names: fmt.Sprint("other-", i)}
		table.SetDeployment(other)
	}
	table.SetDeployment(d)
	table.MarkSynced()
	return table, d
}

// TestAListAfterAChangeLooksAtNoOtherNames: a tenant changes names and a client lists them,
// as often as they like.
func TestAListAfterAChangeLooksAtNoOtherNames(t *testing.T) {
	table, d := longList()
	i := 0
	if n := testing.AllocsPerRun(20, func() {
		i++
		d.Names = fmt.Sprint("name-", i)
		table.SetDeployment(d)
		for range table.Names() {
			break
		}
	}); n > 200 {
		t.Errorf("the list after a change allocates %v objects, as if it looked at each of 5000 deployments", n)
	}
}

// TestOtherChangesLeaveTheListOfNames as it is.
func TestOtherChangesLeaveTheListOfNames(t *testing.T) {
	table, d := longList()
	before := table.names.list.current(&table.mu)
	d.Suspended, d.Context, d.Routing = true, 4096, &Routing{}
	table.SetDeployment(d)
	if table.names.list.changed.Load() != before.of {
		t.Error("a suspension changed the list")
	}
}

// TestAListInProgressKeepsNoOldVersion: its client may read it for minutes.
func TestAListInProgressKeepsNoOldVersion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table, d := longList()
		next, stop := iter.Pull(table.Names())
		defer stop()
		next()
		old := weak.Make(table.names.list.newest.Load())
		d.Names = "zz-new"
		table.SetDeployment(d)
		time.Sleep(listEvery)
		var last string
		for n := range table.Names() {
			last = n.Name
		}
		if last != "zz-new" {
			t.Errorf("after %s the last name of the list is %q", listEvery, last)
		}
		runtime.GC()
		if old.Value() != nil {
			t.Error("a list in progress keeps an old version of all names")
		}
		for n, ok := next(); ok; n, ok = next() {
			last = n.Name
		}
		if last != "zz-new" {
			t.Errorf("the list in progress ends with %q", last)
		}
	})
}

// TestNamesThatComeAndGoTakeNoMemory while no client lists them.
func TestNamesThatComeAndGoTakeNoMemory(t *testing.T) {
	table, d := longList()
	table.names.list.current(&table.mu)
	for i := range 100 {
		d.Names = fmt.Sprint("name-", i)
		table.SetDeployment(d)
	}
	if n := len(table.names.list.changes); n > 2 {
		t.Errorf("%d changes are kept of one name that changed 100 times", n)
	}
}
