package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// entries counts the entries of the indexes that a deployment has.
type entries struct {
	of *v1alpha1.ModelDeployment
	n  int
}

func (e *entries) IndexField(_ context.Context, o client.Object, _ string, extract client.IndexerFunc) error {
	if _, is := o.(*v1alpha1.ModelDeployment); is {
		e.n += len(extract(e.of))
	}
	return nil
}

// withManyNames returns a deployment with as many names as the schema allows, each as long as it allows.
func withManyNames() v1alpha1.ModelDeployment {
	long := func(name string, length int) string { return name + strings.Repeat("x", length-len(name)) }
	var served, adapters []string
	for i := range 8 {
		served = append(served, long(fmt.Sprintf("ns/%d-", i), 128))
	}
	for i := range 16 {
		adapters = append(adapters, long(fmt.Sprintf("a%d-", i), 63))
	}
	return withAdapters("ns", "m", served, adapters...)
}

// TestAttackNamesInTheOperatorsIndexes: an entry takes more memory than the name, and a
// deployment whose spec is small may have 153 names.
func TestAttackNamesInTheOperatorsIndexes(t *testing.T) {
	d := withManyNames()
	if d.Status.ServedNames, _ = Names(&d, nil); len(d.Status.ServedNames) != 153 {
		t.Fatalf("%d names", len(d.Status.ServedNames))
	}
	e := &entries{of: &d}
	if err := AddIndexes(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	if e.n < 9 || e.n > 24 {
		t.Errorf("%d entries, want one for each served name and index", e.n)
	}
}

// TestAttackNamesInTheOrdersOfAMac: placement counts the assignments of a Mac without their names,
// and etcd refuses an object of 1.5 MiB, with the assignments of all tenants.
func TestAttackNamesInTheOrdersOfAMac(t *testing.T) {
	d := withManyNames()
	if refusal := OversizedDeployment(&d, &d.Spec); refusal == nil || refusal.Reason != v1alpha1.ReasonSpecTooLarge {
		t.Errorf("the names that the schema allows are accepted: %+v", refusal)
	}
	counted := 0
	Compact(&d, "", func(bytes int) bool { counted = bytes; return true })
	if whole, _ := Names(&d, nil); counted < jsonBytes(whole) {
		t.Errorf("%d bytes count in the operator, and its names are %d", counted, jsonBytes(whole))
	}
	for d = withManyNames(); OversizedDeployment(&d, &d.Spec) != nil; {
		d.Spec.ServedNames = d.Spec.ServedNames[1:]
	}
	d.Status.ServedNames, _ = Names(&d, nil)
	d.Status.Adapters = Adapters(&d, d.Status.ServedNames)
	var replicas []v1alpha1.ModelReplica
	for i := range MaxAssignments {
		r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: d.Namespace, Name: fmt.Sprint("m-", i), UID: types.UID(fmt.Sprint(i))}}
		r.Spec.NodeName, r.Spec.DeploymentRef.UID = "mac", string(d.UID)
		for _, a := range d.Spec.Adapters {
			r.Spec.Model.Adapters = append(r.Spec.Model.Adapters, model.Adapter{Name: a.Name, Source: a.Source})
		}
		replicas = append(replicas, r)
	}
	orders := Assignments("mac", replicas, []v1alpha1.ModelDeployment{d})
	b, err := json.Marshal(orders)
	if err != nil {
		t.Fatal(err)
	}
	if most := maxAssignmentsBytes + len(orders)*maxNamesBytes; len(orders) < 32 || len(orders[0].ServedNames) < 17 || len(b) > most || most > 1<<20 {
		t.Errorf("%d assignments of %d names take %d bytes, want at most %d", len(orders), len(orders[0].ServedNames), len(b), most)
	}
}

// TestHoldersOfNamesAreFound compares what the keys of names find with a look at all deployments.
func TestHoldersOfNamesAreFound(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	pick := func(from []string, most int) (out []string) {
		for range random.IntN(most + 1) {
			if s := from[random.IntN(len(from))]; !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
		return out
	}
	names := []string{"x", "x:a", "x:a:b", "x:b", "ns/d0", "ns/d0:a", "ns/d1", "ns/d1:b", "d0", "d0:a", "y"}
	for range 2000 {
		var all []v1alpha1.ModelDeployment
		index := map[string][]int{}
		for i := range 6 {
			d := withAdapters("ns", fmt.Sprint("d", i), pick(names, 3), pick([]string{"a", "b"}, 2)...)
			d.CreationTimestamp = metav1.Unix(random.Int64N(4), 0)
			d.Status.ServedNames = pick(append(Claims(&d), names...), 8)
			if random.IntN(8) == 0 {
				d.DeletionTimestamp = &metav1.Time{Time: time.Unix(9, 0)}
			}
			all = append(all, d)
			for _, key := range heldUnder(&d) {
				index[key] = append(index[key], i)
			}
		}
		for i := range all {
			var found []NameHolder
			seen := map[int]bool{}
			for _, key := range HolderKeys(Claims(&all[i])) {
				for _, at := range index[key] {
					if !seen[at] {
						seen[at] = true
						found = append(found, HolderOf(&all[at]))
					}
				}
			}
			owned, conflicts := Names(&all[i], found)
			wantOwned, wantConflicts := Names(&all[i], Holders(all))
			same := func(a, b NameConflict) bool { return a.Name == b.Name && a.Owner.UID == b.Owner.UID }
			if !slices.Equal(owned, wantOwned) || !slices.EqualFunc(conflicts, wantConflicts, same) {
				t.Fatalf("seed %d: %s owns %q with conflicts %+v, want %q and %+v", seed, all[i].Name, owned, conflicts, wantOwned, wantConflicts)
			}
		}
	}
}
