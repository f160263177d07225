// Package plan chooses a Mac for a replica: filter, score, pick, with a reason for every
// rejected Mac, and if none has room, the replicas of a lower priority to preempt.
//
// It is pure: it reads a snapshot and returns data. It does not guess: a Mac whose capacity
// or disk is unknown holds nothing, and reservations are cumulative, so that reserved
// memory counts whether or not it is used yet. Only replicas that stay in memory reserve it
// permanently. OnDemand replicas share the rest: each alone has to fit into it, but their
// requirements are not added up, unless the administrator's rules limit the overcommitment.
//
// Start reading at Snapshot.Pick, then view in view.go (filter and score), preempt.go,
// rules.go and reserve.go.
package plan

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers/fleet"
)

// Snapshot is the fleet at one moment, with assumed placements.
type Snapshot struct {
	now   time.Time
	rules Rules
	macs  []*state
	index map[string]int // of macs, by name
	// kin are the replicas of a deployment, by its UID, that are not being deleted.
	kin map[string][]place
	// reserved is the permanent memory of each namespace, prefetched the disk space of its
	// prefetches, and ahead the part of that for swaps.
	reserved, prefetched, ahead map[string]int64
	// doomed are the replicas that a decision of this pass preempts.
	doomed  map[types.UID]bool
	classes map[classKey]*class
	// inspection returns the id of the inspection that the deployment of a replica asks for;
	// nil: no report counts for other Macs.
	inspection func(*v1alpha1.ModelReplica) string
	// version changes with everything that decisions depend on.
	version int
}

// place is the location of a replica.
type place struct {
	mac      int
	revision string
}

// state is one Mac in a snapshot.
type state struct {
	mac      *v1alpha1.MacNode
	capacity int64
	// closed is why no replica may be placed there; open if one may.
	closed   kind
	promise  fleet.Promise
	onDemand int64 // the sum over promise.OnDemand
	// replicas counts the bound replicas, released or not: each has an assignment, and
	// together these have orderBytes.
	replicas, orderBytes int
	// bound are the replicas with reserved memory.
	bound []*v1alpha1.ModelReplica
	// standing are the replicas that only keep weights here.
	standing []*v1alpha1.ModelReplica
	// shares are the assignments of each namespace among bound and standing.
	shares map[string]share
	// leaving is the part of promise.Always that drains, and claimed what replicas of a
	// higher priority wait for here.
	leaving, claimed int64
	// shared is the part of promise.Always of replicas that become OnDemand in this pass.
	shared int64
	// fetching lists the pending downloads, and fetchBytes is their sum.
	fetching   []fetch
	fetchBytes int64
}

// share is a number of assignments and their bytes.
type share struct{ count, bytes int }

// uses counts an assignment of a namespace, or no longer with a negative count.
func (st *state) uses(namespace string, count, bytes int) {
	if st.shares == nil {
		st.shares = map[string]share{}
	}
	now := st.shares[namespace]
	st.shares[namespace] = share{now.count + count, now.bytes + bytes}
}

// fetch is a pending download. There are few per Mac: a list is faster than a map.
type fetch struct {
	digest string
	bytes  int64
}

// NewSnapshot reads all Macs and all replicas. It refers to them and does not change them.
func NewSnapshot(macs []v1alpha1.MacNode, replicas []v1alpha1.ModelReplica, now time.Time) *Snapshot {
	s := &Snapshot{
		now: now, macs: make([]*state, 0, len(macs)), index: make(map[string]int, len(macs)), kin: map[string][]place{},
		reserved: map[string]int64{}, prefetched: map[string]int64{}, ahead: map[string]int64{}, doomed: map[types.UID]bool{}, classes: map[classKey]*class{},
	}
	states := make([]state, len(macs))
	for i := range macs {
		states[i] = state{mac: &macs[i], capacity: macs[i].Status.Memory.CapacityBytes, closed: closedTo(&macs[i])}
		s.macs = append(s.macs, &states[i])
	}
	slices.SortFunc(s.macs, func(a, b *state) int { return cmp.Compare(a.mac.Name, b.mac.Name) })
	for i, st := range s.macs {
		s.index[st.mac.Name] = i
	}
	s.makeRoom(replicas)
	for i := range replicas {
		s.note(&replicas[i])
	}
	return s
}

// makeRoom preallocates what note fills for each Mac, because growing the lists costs more
// than their content.
func (s *Snapshot) makeRoom(replicas []v1alpha1.ModelReplica) {
	counts, total := make([]int, len(s.macs)), 0
	for i := range replicas {
		if at, has := s.index[replicas[i].Spec.NodeName]; has {
			counts[at]++
			total++
		}
	}
	all := make([]*v1alpha1.ModelReplica, total)
	for i, n := range counts {
		s.macs[i].bound, all = all[:0:n], all[n:]
	}
}

// Under sets the administrator's rules.
func (s *Snapshot) Under(rules Rules) *Snapshot {
	s.rules = rules
	s.version++
	return s
}

// Asking sets how the id of the inspection is found that the deployment of a replica asks for.
func (s *Snapshot) Asking(inspection func(*v1alpha1.ModelReplica) string) *Snapshot {
	s.inspection = inspection
	s.version++
	return s
}

// AskedBy returns the ids of the inspections that these deployments ask for, for Asking.
func AskedBy(deployments ...v1alpha1.ModelDeployment) func(*v1alpha1.ModelReplica) string {
	return func(r *v1alpha1.ModelReplica) string {
		for i := range deployments {
			if string(deployments[i].UID) == r.Spec.DeploymentRef.UID {
				return fleet.InspectionID(&deployments[i])
			}
		}
		return ""
	}
}

// note counts a bound replica.
func (s *Snapshot) note(r *v1alpha1.ModelReplica) {
	if r.Spec.NodeName == "" {
		s.noteAhead(r)
		return
	}
	released, living := fleet.Released(r), r.DeletionTimestamp.IsZero()
	if !released && !r.Spec.Residency.OnDemand() {
		s.reserved[r.Namespace] += r.Spec.ReservedBytes
	}
	i, has := s.index[r.Spec.NodeName]
	if !has {
		return
	}
	st := s.macs[i]
	bytes := fleet.OrderBytes(r)
	st.replicas++
	st.orderBytes += bytes
	st.uses(r.Namespace, 1, bytes) // a released one too: its owner may keep it for long
	if living {
		uid := r.Spec.DeploymentRef.UID
		s.kin[uid] = append(s.kin[uid], place{i, r.Spec.Revision})
	}
	if released {
		return
	}
	st.hold(r)
	if !living && !r.Spec.Residency.OnDemand() {
		st.leaving += r.Spec.ReservedBytes
	}
	if living && !meta.IsStatusConditionTrue(r.Status.Conditions, v1alpha1.ConditionDownloaded) {
		st.fetchParts(r, fetched(r))
	}
}

// absent returns the parts of a replica that a Mac has to fetch: neither those that are
// stored there, nor those of a file:// source, which are used in place.
func absent(mac *v1alpha1.MacNode, r *v1alpha1.ModelReplica) (out []model.Record) {
	for _, part := range r.Spec.Model.Parts() {
		if !strings.HasPrefix(part.Source, fleet.FileScheme) && !fleet.HasWeights(mac, part.Digest) {
			out = append(out, part)
		}
	}
	return out
}

// fetchParts counts the downloads of a replica's parts, of which done bytes are on the disk
// already.
func (st *state) fetchParts(r *v1alpha1.ModelReplica, done int64) {
	for _, part := range absent(st.mac, r) {
		n := part.Bytes()
		st.fetch(part.Digest, max(0, n-done))
		done = max(0, done-n)
	}
}

// downloads reports whether a Mac has to fetch the files of a replica's model: those of a
// file:// source are used in place.
func downloads(r *v1alpha1.ModelReplica) bool {
	return !strings.HasPrefix(r.Spec.Model.Source, fleet.FileScheme)
}

// fetched returns how much of a download is on the disk already, as the Mac last reported.
func fetched(r *v1alpha1.ModelReplica) int64 {
	if r.Status.Progress.Stage != v1alpha1.StageDownloading {
		return 0
	}
	return r.Status.Progress.BytesDone
}

func (st *state) fetch(digest string, bytes int64) {
	i := st.fetches(digest)
	if i < 0 {
		i = len(st.fetching)
		st.fetching = append(st.fetching, fetch{digest: digest})
	}
	more := max(0, bytes-st.fetching[i].bytes)
	st.fetching[i].bytes += more
	st.fetchBytes += more
}

// fetches returns the index of a digest among the downloads; -1 if it is not there.
func (st *state) fetches(digest string) int {
	return slices.IndexFunc(st.fetching, func(f fetch) bool { return f.digest == digest })
}

// fetchesAll reports whether everything that a replica needs is there, or is being
// downloaded for others.
func (st *state) fetchesAll(r *v1alpha1.ModelReplica) bool {
	return !slices.ContainsFunc(absent(st.mac, r), func(part model.Record) bool { return st.fetches(part.Digest) < 0 })
}

// hold reserves the memory of a replica.
func (st *state) hold(r *v1alpha1.ModelReplica) {
	st.promise.Add(r)
	if r.Spec.Residency.OnDemand() {
		st.onDemand += r.Spec.ReservedBytes
	}
	st.bound = append(st.bound, r)
}

// free returns the memory that is neither reserved permanently nor claimed with a higher
// priority; draining memory counts as claimed.
func (st *state) free() int64 {
	return st.capacity - st.promise.Always - max(0, st.claimed-st.leaving)
}

// Assume places a replica in the snapshot and returns a function that reverts it, to be
// called in reverse order.
func (s *Snapshot) Assume(r *v1alpha1.ModelReplica, mac string) (undo func()) {
	i, has := s.index[mac]
	if !has {
		return func() {}
	}
	st, owner := s.macs[i], r.Spec.DeploymentRef.UID
	s.version++
	fetching, fetchBytes := slices.Clone(st.fetching), st.fetchBytes
	bytes := fleet.OrderBytes(r)
	st.hold(r)
	st.uses(r.Namespace, 1, bytes)
	st.replicas++
	st.orderBytes += bytes
	s.kin[owner] = append(s.kin[owner], place{i, r.Spec.Revision})
	st.fetchParts(r, 0)
	if !r.Spec.Residency.OnDemand() {
		s.reserved[r.Namespace] += r.Spec.ReservedBytes
	}
	return func() {
		s.version++
		st.promise.Remove(r)
		if r.Spec.Residency.OnDemand() {
			st.onDemand -= r.Spec.ReservedBytes
		} else {
			s.reserved[r.Namespace] -= r.Spec.ReservedBytes
		}
		st.bound = slices.DeleteFunc(st.bound, func(x *v1alpha1.ModelReplica) bool { return x == r })
		st.uses(r.Namespace, -1, -bytes)
		st.replicas--
		st.orderBytes -= bytes
		if at := slices.Index(s.kin[owner], place{i, r.Spec.Revision}); at >= 0 {
			s.kin[owner] = slices.Delete(s.kin[owner], at, at+1)
		}
		st.fetching, st.fetchBytes = fetching, fetchBytes
	}
}

// Sort orders replicas for placement: the highest priority first. Within a priority,
// namespaces take turns, each with its oldest replica first, so that a namespace with many
// replicas delays the others by one replica and not by all.
func Sort(replicas []*v1alpha1.ModelReplica) {
	type group struct {
		priority  int32
		namespace string
	}
	type turned struct {
		replica *v1alpha1.ModelReplica
		turn    int
	}
	slices.SortFunc(replicas, Before)
	all, turns := make([]turned, len(replicas)), map[group]int{}
	for i, r := range replicas {
		g := group{r.Spec.Priority.Value, r.Namespace}
		all[i] = turned{r, turns[g]}
		turns[g]++
	}
	slices.SortStableFunc(all, func(a, b turned) int {
		return cmp.Or(cmp.Compare(b.replica.Spec.Priority.Value, a.replica.Spec.Priority.Value), a.turn-b.turn)
	})
	for i := range all {
		replicas[i] = all[i].replica
	}
}

// Before orders replicas by priority, the highest first, then by age.
func Before(a, b *v1alpha1.ModelReplica) int {
	if c := cmp.Compare(b.Spec.Priority.Value, a.Spec.Priority.Value); c != 0 {
		return c
	}
	return older(a, b)
}

// older orders replicas by age, and by name within a second.
func older(a, b *v1alpha1.ModelReplica) int {
	if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Decision is where a replica is placed, or why nowhere.
type Decision struct {
	// Mac is the chosen one; empty if none.
	Mac string
	// Reason of the condition Placed: Placed, NoRoom, TooLarge, NoCandidates,
	// Waiting, Preempting, Prefetching, Swapping, OverQuota or RulesMissing.
	Reason string
	// Message explains the choice, or summarizes the reasons of all Macs.
	Message string
	// Awaits is the Mac on which replicas of a lower priority, or one of another revision,
	// make room, and Victims those that are not deleted yet.
	Awaits  string
	Victims []*v1alpha1.ModelReplica
	// Prefetch is the Mac that is to fetch the weights, or to keep them, until the replica
	// has its memory there.
	Prefetch string
	// RetryAfter is when an avoided Mac may be chosen, or is checked again; 0 means that
	// only a change of the fleet can help.
	RetryAfter time.Duration
}

// Pick decides for one replica.
func (s *Snapshot) Pick(r *v1alpha1.ModelReplica) Decision {
	if reason, message := s.rules.refuse(r, s.reserved[r.Namespace]); reason != "" {
		return Decision{Reason: reason, Message: message}
	}
	c := s.class(r)
	if d, known := s.stillStuck(c, r); known {
		return d
	}
	v := s.viewOf(c, r)
	best, bestScore, looks := -1, int64(0), false
	for i := range s.macs {
		why, ok := v.fits(i)
		if !ok {
			looks = looks || why == looking
			continue
		}
		// Sorted by name: the first of equals is chosen, the same in every pass.
		if score := v.score(i); best < 0 || score > bestScore {
			best, bestScore = i, score
		}
	}
	if best < 0 {
		return v.stuck()
	}
	st := s.macs[best]
	if wait := v.patience(best, looks); wait > 0 {
		return Decision{Reason: v1alpha1.ReasonWaiting, RetryAfter: wait,
			Message: "" + st.mac.Name + " already has a replica of this deployment; waiting for another Mac that is still inspecting the source"}
	}
	return Decision{Mac: st.mac.Name, Reason: v1alpha1.ReasonPlaced, Message: st.chosen(r)}
}

// stillStuck returns the decision for a sibling with the same requirements if nothing has
// changed since.
func (s *Snapshot) stillStuck(c *class, r *v1alpha1.ModelReplica) (Decision, bool) {
	last := &c.stuck
	return last.decision, last.decided && !r.Spec.Swap && last.version == s.version && last.priority == r.Spec.Priority
}

// stuck decides for a replica that no Mac can hold now.
func (v *view) stuck() Decision {
	if d, ok := v.preempt(); ok {
		return d
	}
	d := v.explain()
	v.c.stuck = stuck{decided: true, version: v.s.version, priority: v.r.Spec.Priority, decision: d}
	return d
}

// spreadPatience is how long a replica waits for a Mac of its own. It is never moved later,
// and inspecting large files takes a while.
const spreadPatience = 30 * time.Second

// patience returns how much longer a replica waits rather than share a Mac with a sibling,
// while another Mac may yet become a candidate.
func (v *view) patience(best int, looks bool) time.Duration {
	if v.siblings[best] == 0 || !looks {
		return 0
	}
	return max(0, spreadPatience-max(0, v.s.now.Sub(v.r.CreationTimestamp.Time)))
}

// accepting is false only if the agent reports so: without a report, the Lease decides.
func accepting(mac *v1alpha1.MacNode) bool {
	return !meta.IsStatusConditionFalse(mac.Status.Conditions, v1alpha1.ConditionAccepting)
}

// Stranded reports whether a Mac has memory that no process owns: its capacity is not
// available until a reboot.
func Stranded(mac *v1alpha1.MacNode) bool {
	return meta.IsStatusConditionTrue(mac.Status.Conditions, v1alpha1.ConditionWiredStranded)
}

// Skewed reports whether this operator does not serve the Mac's agent version: assignments
// there might be misunderstood.
func Skewed(mac *v1alpha1.MacNode) bool {
	c := meta.FindStatusCondition(mac.Status.Conditions, v1alpha1.ConditionAgentCurrent)
	return c != nil && (c.Reason == v1alpha1.ReasonAgentTooOld || c.Reason == v1alpha1.ReasonAgentTooNew)
}
