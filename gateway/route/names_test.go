package route_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	difference "github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/gateway/route"
)

// meaning is what a name means: a deployment, and an adapter of it.
type meaning struct {
	Name, Deployment, Adapter string
}

// adapterIn returns the adapter that ends a name.
func adapterIn(name string, d route.Deployment) string {
	for _, a := range strings.Split(d.Adapters, "\n") {
		if a != "" && strings.HasSuffix(name, ":"+a) {
			return a
		}
	}
	return ""
}

// indexed computes from scratch what names mean, and which are listed.
func indexed(all map[route.Key]route.Deployment) (found map[string]meaning, listed []meaning) {
	var list []route.Deployment
	for _, d := range all {
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b route.Deployment) int {
		return cmp.Or(cmp.Compare(a.Created, b.Created), strings.Compare(a.Key.String(), b.Key.String()))
	})
	found = map[string]meaning{}
	full := map[route.Key][]meaning{}
	for _, d := range list {
		own := []meaning{{d.Key.String(), d.Key.String(), ""}}
		for _, a := range strings.Split(d.Adapters, "\n") {
			if a != "" {
				own = append(own, meaning{d.Key.String() + ":" + a, d.Key.String(), a})
			}
		}
		full[d.Key] = own
		for _, m := range own {
			found[m.Name] = m
		}
	}
	for _, d := range list {
		named := false
		for _, name := range strings.Split(d.Names, "\n") {
			if _, taken := found[name]; name != "" && !taken {
				named = true
				found[name] = meaning{name, d.Key.String(), adapterIn(name, d)}
				listed = append(listed, found[name])
			}
		}
		if !named {
			listed = append(listed, full[d.Key]...)
		}
	}
	slices.SortFunc(listed, func(a, b meaning) int { return strings.Compare(a.Name, b.Name) })
	return found, listed
}

// TestNamesAreThoseOfAPlainIndex compares with an index that is made again for each change.
func TestNamesAreThoseOfAPlainIndex(t *testing.T) {
	universe := []string{"a", "b", "a:x", "ns/d0", "ns/d1", "ns/d2", "ns/d0:x", "ns/d1:x", "ns/d1:y", "other/d", "unknown"}
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 11))
		pick := func(names ...string) string { return names[rng.IntN(len(names))] }
		table, all := route.NewTable(), map[route.Key]route.Deployment{}
		for step := range 200 {
			if step == 5 {
				table.MarkSynced()
			}
			key := route.Key{Namespace: "ns", Name: pick("d0", "d1", "d2")}
			if rng.IntN(4) == 0 {
				table.DeleteDeployment(key, all[key].UID)
				delete(all, key)
			} else {
				all[key] = route.Deployment{Key: key, UID: pick("u1", "u2"), Created: int64(rng.IntN(3)), Adapters: pick("", "x", "x\ny"),
					Names: pick("", "a", "b\na", "a\na", "a\na:x", "ns/d1\nb", "other/d", "ns/d1:x", "ns/d0\nns/d0:x\na:x")}
				table.SetDeployment(all[key])
			}
			if step < 5 {
				continue
			}
			found, listed := indexed(all)
			for _, name := range universe {
				n, ok := table.Find(name)
				want, wanted := found[name]
				if ok != wanted || ok && (meaning{n.Name, n.Model.Key.String(), n.Adapter}) != want {
					t.Fatalf("seed %d step %d: %q is %+v (%t), want %+v (%t)", seed, step, name, n, ok, want, wanted)
				}
			}
			var got []meaning
			for n := range table.Names() {
				got = append(got, meaning{n.Name, n.Model.Key.String(), n.Adapter})
			}
			if d := difference.Diff(listed, got); d != "" {
				t.Fatalf("seed %d step %d: %s", seed, step, d)
			}
		}
	}
}

// many returns a table of many deployments, and one of them.
func many(n int) (*route.Table, route.Deployment) {
	table := route.NewTable()
	var d route.Deployment
	for i := range n {
		d = route.Deployment{Key: route.Key{Namespace: "ns", Name: fmt.Sprint("d", i)}, UID: fmt.Sprint(i), Names: fmt.Sprintf("d%d\nalias-%d", i, i)}
		table.SetDeployment(d)
	}
	table.MarkSynced()
	return table, d
}

// TestAChangedNameCostsNoLookAtOthers: a tenant changes names as often as the API server
// accepts, at every gateway.
func TestAChangedNameCostsNoLookAtOthers(t *testing.T) {
	table, d := many(1000)
	i := 0
	if n := testing.AllocsPerRun(20, func() {
		i++
		d.Names = fmt.Sprint("name-", i)
		table.SetDeployment(d)
	}); n > 100 {
		t.Errorf("a changed name allocates %v objects, as if it looked at each of 1000 deployments", n)
	}
}

func BenchmarkChangedName(b *testing.B) {
	table, d := many(1000)
	for i := 0; b.Loop(); i++ {
		d.Names = fmt.Sprint("name-", i%2)
		table.SetDeployment(d)
	}
}

// TestANameThatStaysIsAlwaysFound while other names of its deployment change.
func TestANameThatStaysIsAlwaysFound(t *testing.T) {
	table, d := many(2)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, ok := table.Find("alias-1"); !ok {
				t.Error("the name is unknown for a moment")
				return
			}
		}
	})
	for i := range 5000 {
		d.Names = fmt.Sprintf("name-%d\nalias-1", i%2)
		table.SetDeployment(d)
	}
	close(stop)
	wg.Wait()
}
