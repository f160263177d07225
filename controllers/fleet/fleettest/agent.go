// Package fleettest simulates a Mac: a scripted agent that runs against a real API server,
// for tests of the operator.
//
// It owns what an agent writes: the status of its MacNode (server-side apply, the agent's
// field manager) and its Lease. It reads only its own MacNode and
// MacAssignment, as a real agent does. It
// starts no engine: footprints and freed bytes are figures of the script. Only _test.go
// files may import it.
//
// Start reading at Start.
package fleettest

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	ac "metalfleet.dev/metalfleet/api/applyconfiguration/api/v1alpha1"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Behaviour is what the agent does with an assigned replica.
type Behaviour string

// Behaviours of the agent.
const (
	Serve      Behaviour = "Serve"      // at once
	Refuse     Behaviour = "Refuse"     // the memory ledger has no room
	KeepsBusy  Behaviour = "KeepsBusy"  // serves, and never finishes draining
	StillLoads Behaviour = "StillLoads" // never finishes loading
	NoCanary   Behaviour = "NoCanary"   // loads but generates no token, and was started three times
)

// Source is the content of a source on this Mac.
type Source struct {
	Model *model.Record
	// Reason and Message of a failure, without a model.
	Reason, Message string
}

// Script is what the agent simulates. Change it only with Agent.Edit.
type Script struct {
	Capacity int64
	Chip     string
	// Sources by their name; a missing one is SourceNotFound.
	Sources map[string]Source
	// Footprint of every engine, and what it frees.
	Footprint int64
	// Weights on its disk.
	Weights []v1alpha1.StoredWeights
	// Ahead returns the state of prefetched weights: empty if they are there, else the
	// reason why not. Nil: they are there.
	Ahead func(v1alpha1.Assignment) string
	// DiskUsed is what other files use of the Mac's disk of one TiB.
	DiskUsed int64
	// Behave returns the behaviour for an assignment; nil serves.
	Behave func(v1alpha1.Assignment) Behaviour
	// Asked reports which OnDemand replicas have requests now: those are loaded, the others
	// are not, or are unloaded as Idle. Nil: none.
	Asked func(v1alpha1.Assignment) bool
	// Conditions of the Mac that the agent owns, such as WiredStranded.
	Conditions []metav1.Condition
	// Pressure level that is reported.
	Pressure v1alpha1.PressureLevel
	// Roots are the fingerprints of the roots that it reports as trusted.
	Roots []string
	// Settings returns what it reports of the settings of its class, which is not nil.
	// Nil: it has applied all of them.
	Settings func(v1alpha1.AssignedClass) v1alpha1.SettingsInForce
	// Silent: no report and no renewal, like a Mac without network.
	Silent bool
}

const diskFree = int64(1) << 40

// Agent simulates one Mac until Stop.
type Agent struct {
	Name      string
	namespace string
	c         client.WithWatch
	stop      context.CancelFunc
	done      sync.WaitGroup

	renewing sync.Mutex // held during a renewal
	mu       sync.Mutex // guards the fields after it
	script   Script
	assigned v1alpha1.MacAssignmentSpec // the last one that the operator confirmed
	loads    map[string]int64           // engines started, by replica UID
	running  map[string]v1alpha1.Assignment
	freed    map[string]int64
	reclaims []v1alpha1.Reclaim
	total    int64
	renewals int
	failure  error
	stopped  bool
}

// Start starts the Mac called name, whose MacNode exists.
func Start(ctx context.Context, c client.WithWatch, namespace, name string, s Script) *Agent {
	ctx, stop := context.WithCancel(ctx)
	a := &Agent{Name: name, namespace: namespace, c: c, stop: stop, script: s,
		loads: map[string]int64{}, running: map[string]v1alpha1.Assignment{}, freed: map[string]int64{}}
	a.done.Go(func() { a.follow(ctx) })
	a.done.Go(func() { a.renew(ctx) })
	return a
}

// Stop ends the agent, like kill -9: nothing is reported.
func (a *Agent) Stop() {
	a.stop()
	a.done.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopped = true
}

// Edit changes the script and reports. An error means that the new script was not reported
// yet, as after a conflict with the operator.
func (a *Agent) Edit(ctx context.Context, change func(*Script)) error {
	a.renewing.Lock()
	a.mu.Lock()
	change(&a.script)
	a.mu.Unlock()
	a.renewing.Unlock()
	return a.play(ctx)
}

// Renewals counts the renewals of the Lease.
func (a *Agent) Renewals() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.renewals
}

// Failure returns the last error of the agent; nil if everything succeeded since.
func (a *Agent) Failure() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.failure
}

func (a *Agent) note(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failure = err
}

// follow runs the script each time the assignments change.
func (a *Agent) follow(ctx context.Context) {
	for ctx.Err() == nil {
		w, err := a.c.Watch(ctx, &v1alpha1.MacAssignmentList{}, client.MatchingFields{"metadata.name": a.Name})
		if err != nil {
			a.note(err)
			pause(ctx, 100*time.Millisecond)
			continue
		}
		for range w.ResultChan() {
			a.insist(ctx)
		}
		w.Stop()
	}
}

// insist retries until the report was written: there may be no further change that would
// trigger it.
func (a *Agent) insist(ctx context.Context) {
	for ctx.Err() == nil {
		err := a.play(ctx)
		if ctx.Err() == nil {
			a.note(err)
		}
		if err == nil {
			return
		}
		pause(ctx, 100*time.Millisecond)
	}
}

// renewEvery is the interval of Lease renewals; a real agent uses 10 s. A test that moves
// the operator's clock renews as often as it needs. The first ones, which a Mac needs to be
// ready, follow soon: almost every test waits for them.
const (
	renewEvery = 250 * time.Millisecond
	renewSoon  = 20 * time.Millisecond
)

func (a *Agent) renew(ctx context.Context) {
	for ctx.Err() == nil {
		if a.Renewals() < 3 {
			pause(ctx, renewSoon)
		} else {
			pause(ctx, renewEvery)
		}
		a.Renew(ctx)
	}
}

// Renew renews the Lease, unless the agent is stopped or silent. It holds renewing, so that
// a silent agent has no renewal in progress.
func (a *Agent) Renew(ctx context.Context) {
	a.renewing.Lock()
	defer a.renewing.Unlock()
	a.mu.Lock()
	silent := a.stopped || a.script.Silent
	a.mu.Unlock()
	if silent {
		return
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: a.namespace, Name: v1alpha1.AgentObjectName(a.Name)}}
	before := lease.DeepCopy()
	lease.Spec.RenewTime, lease.Spec.HolderIdentity = ptr.To(metav1.NowMicro()), &a.Name
	if err := a.c.Patch(ctx, lease, client.MergeFrom(before), client.FieldOwner(v1alpha1.ManagerAgent)); err != nil {
		return // the API server is paused, or the Lease does not exist yet
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.renewals++
}

// play reads the assignments and reports.
func (a *Agent) play(ctx context.Context) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.script.Silent {
		return nil
	}
	var mac v1alpha1.MacNode
	if err := a.c.Get(ctx, client.ObjectKey{Name: a.Name}, &mac); err != nil {
		return client.IgnoreNotFound(err)
	}
	var assigned v1alpha1.MacAssignment
	if err := a.c.Get(ctx, client.ObjectKey{Name: a.Name}, &assigned); client.IgnoreNotFound(err) != nil {
		return err
	}
	if assigned.Confirmed() {
		a.assigned = assigned.Spec
	}
	before, err := json.Marshal(own(mac.Status))
	if err != nil {
		return err
	}
	after, err := json.Marshal(a.report(&mac))
	if err != nil || string(before) == string(after) {
		return err
	}
	next := ac.MacNodeStatus()
	if err := json.Unmarshal(after, next); err != nil {
		return err
	}
	err = a.c.Status().Apply(ctx, ac.MacNode(a.Name).WithUID(mac.UID).WithStatus(next), client.FieldOwner(v1alpha1.ManagerAgent), client.ForceOwnership)
	if err != nil {
		return fmt.Errorf("report of %s: %w", a.Name, err)
	}
	return nil
}

// own drops the fields that an agent does not write.
func own(s v1alpha1.MacNodeStatus) v1alpha1.MacNodeStatus {
	s.Conditions = slices.DeleteFunc(slices.Clone(s.Conditions), func(c metav1.Condition) bool { return c.Type == v1alpha1.ConditionReady })
	if len(s.Conditions) == 0 {
		s.Conditions = nil
	}
	return s
}

func (a *Agent) report(mac *v1alpha1.MacNode) v1alpha1.MacNodeStatus {
	s := v1alpha1.MacNodeStatus{
		ObservedGeneration: mac.Generation, AgentVersion: "script", BootID: "script", Chip: a.script.Chip, Backend: "ref", Simulated: true,
		Address:    &v1alpha1.MacAddress{Host: "127.0.0.1", Port: 7443},
		Weights:    a.script.Weights,
		Memory:     v1alpha1.MacMemory{TotalBytes: a.script.Capacity, CeilingBytes: a.script.Capacity, CapacityBytes: a.script.Capacity, PressureLevel: a.script.Pressure},
		Disk:       v1alpha1.MacDisk{FreeBytes: diskFree - a.script.DiskUsed},
		Conditions: a.script.Conditions, TrustedRoots: a.script.Roots,
	}
	if class := a.assigned.Class; class != nil {
		s.Settings = v1alpha1.SettingsInForce{Class: class.Name, ClassGeneration: class.Generation}
		if a.script.Settings != nil {
			s.Settings = a.script.Settings(*class)
		}
	}
	for _, order := range a.assigned.Inspections {
		s.Inspections = append(s.Inspections, a.inspect(order))
	}
	wanted := map[string]bool{}
	for _, order := range a.assigned.Assignments {
		wanted[order.ReplicaUID] = true
		s.Assignments = append(s.Assignments, a.obey(order))
	}
	for uid, order := range a.running {
		if !wanted[uid] {
			a.end(order, v1alpha1.ReclaimUnassigned)
		}
	}
	for _, order := range a.running {
		s.Memory.ReservedBytes += order.ReservedBytes
		s.Memory.FootprintBytes += a.script.Footprint
	}
	s.Reclaims, s.Memory.FreedBytesTotal = a.reclaims, a.total
	return s
}

func (a *Agent) inspect(order v1alpha1.Inspection) v1alpha1.InspectionStatus {
	out := v1alpha1.InspectionStatus{ID: order.ID, Source: order.Source, State: v1alpha1.InspectionFailed}
	src, has := a.script.Sources[order.Source]
	switch {
	case !has:
		out.Reason, out.Message = v1alpha1.ReasonSourceNotFound, "no such file: "+order.Source
	case src.Model == nil:
		out.Reason, out.Message = src.Reason, src.Message
	case order.SHA256 != "" && order.SHA256 != src.Model.Files[0].SHA256:
		out.Reason, out.Message = v1alpha1.ReasonDigestMismatch, "the file has another digest: "+src.Model.Files[0].SHA256
	default:
		out.State, out.Model = v1alpha1.InspectionResolved, withAdapters(src.Model, order.Adapters)
	}
	return out
}

// withAdapters is the record of a model with adapters, which all exist.
func withAdapters(r *model.Record, adapters []v1alpha1.AdapterSpec) *model.Record {
	out := r.DeepCopy()
	for _, a := range adapters {
		one := model.Adapter{Name: a.Name, Source: a.Source}
		if strings.HasPrefix(a.Source, "hf://") {
			one.Commit = strings.Repeat("1", 40)
		}
		sum := fmt.Sprintf("%x", sha256.Sum256([]byte(a.Source)))
		one.Files = []model.File{{Path: "adapter_config.json", Bytes: 100, SHA256: sum}, {Path: "adapters.safetensors", Bytes: 1 << 20, SHA256: sum}}
		one.Digest = model.DigestOf(one.Files)
		out.Adapters = append(out.Adapters, one)
	}
	return out
}

// obey does at once what takes a real agent some time.
func (a *Agent) obey(order v1alpha1.Assignment) v1alpha1.AssignmentStatus {
	does := Serve
	if a.script.Behave != nil {
		does = a.script.Behave(order)
	}
	out := v1alpha1.AssignmentStatus{ReplicaUID: order.ReplicaUID, Epoch: order.Epoch}
	_, runs := a.running[order.ReplicaUID]
	switch {
	case order.Desired == v1alpha1.DesiredDrained && runs && does == KeepsBusy:
		out.Progress.Stage = v1alpha1.StageDraining
		out.Conditions = conditions(v1alpha1.ConditionServing, "")
	case order.Desired == v1alpha1.DesiredDrained:
		if runs {
			a.end(order, v1alpha1.ReclaimDrained)
		}
		out.Progress.Stage = v1alpha1.StageReleased
		out.Conditions = append(conditions(v1alpha1.ConditionDownloaded, v1alpha1.ReasonStopped),
			metav1.Condition{Type: v1alpha1.ConditionReleased, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReleased, LastTransitionTime: epoch})
	case order.Desired == v1alpha1.DesiredDownloaded:
		out.Progress, out.Conditions = a.fetch(order)
	case order.Residency.OnDemand() && does == Serve && (a.script.Asked == nil || !a.script.Asked(order)):
		if runs {
			a.end(order, v1alpha1.ReclaimIdle)
		}
		out.Progress.Stage = v1alpha1.StageQueued
		out.Conditions = waitingForDemand()
	case does == Refuse:
		out.Progress.Stage = v1alpha1.StageFailed
		out.Conditions = conditions(v1alpha1.ConditionDownloaded, v1alpha1.ReasonInsufficientRoom)
	case does == NoCanary:
		out.Progress.Stage, out.Restarts = v1alpha1.StageFailed, 3
		out.LastFailure = &v1alpha1.EngineFailure{Reason: v1alpha1.ReasonCanaryFailed, Message: "the model cannot generate a token", Time: epoch}
		out.Conditions = conditions(v1alpha1.ConditionAdmitted, v1alpha1.ReasonCanaryFailed)
	case does == StillLoads:
		out.Progress = v1alpha1.Progress{Stage: v1alpha1.StageLoading, BytesDone: 41, BytesTotal: 100, ETASeconds: ptr.To[int64](4)}
		out.Conditions = conditions(v1alpha1.ConditionAdmitted, v1alpha1.ReasonLoading)
	default:
		if !runs {
			a.loads[order.ReplicaUID]++
		}
		a.running[order.ReplicaUID] = order
		out.Progress.Stage = v1alpha1.StageServing
		out.Memory.FootprintBytes = a.script.Footprint
		out.Canary = &v1alpha1.Canary{Time: epoch}
		out.Conditions = conditions(v1alpha1.ConditionServing, "")
	}
	if total, has := a.freed[order.ReplicaUID]; has {
		out.Freed = v1alpha1.Freed{Bytes: ptr.To(a.script.Footprint), TotalBytes: total, Reason: v1alpha1.ReclaimDrained, HostCheck: v1alpha1.HostCheckVerified}
	}
	return out
}

// fetch returns the state of weights that are to be on the disk.
func (a *Agent) fetch(order v1alpha1.Assignment) (v1alpha1.Progress, []metav1.Condition) {
	if a.script.Ahead == nil || a.script.Ahead(order) == "" {
		return v1alpha1.Progress{Stage: v1alpha1.StageQueued}, conditions(v1alpha1.ConditionDownloaded, "")
	}
	return v1alpha1.Progress{Stage: v1alpha1.StageDownloading, BytesDone: 41, BytesTotal: 100}, []metav1.Condition{{Type: v1alpha1.ConditionDownloaded,
		Status: metav1.ConditionFalse, Reason: a.script.Ahead(order), Message: "as the script says", LastTransitionTime: epoch}}
}

// epoch is the time of all transitions: the script has no clock.
var epoch = metav1.NewTime(time.Unix(1_700_000_000, 0))

// conditions returns true conditions up to last, which is false for a reason if there is
// one.
func conditions(last, reason string) []metav1.Condition {
	var out []metav1.Condition
	for _, kind := range []string{v1alpha1.ConditionDownloaded, v1alpha1.ConditionAdmitted, v1alpha1.ConditionLoaded, v1alpha1.ConditionServing} {
		out = append(out, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Scripted", LastTransitionTime: epoch})
		if kind == last {
			break
		}
	}
	if next := map[string]string{v1alpha1.ConditionDownloaded: v1alpha1.ConditionAdmitted, v1alpha1.ConditionAdmitted: v1alpha1.ConditionLoaded}[last]; reason != "" && next != "" {
		out = append(out, metav1.Condition{Type: next, Status: metav1.ConditionFalse, Reason: reason, Message: "as the script says", LastTransitionTime: epoch})
	}
	return out
}

// waitingForDemand: it accepts requests, and the first one loads the model.
func waitingForDemand() []metav1.Condition {
	says := func(kind string, s metav1.ConditionStatus) metav1.Condition {
		return metav1.Condition{Type: kind, Status: s, Reason: v1alpha1.ReasonOnDemand, Message: "the next request loads it", LastTransitionTime: epoch}
	}
	return []metav1.Condition{
		{Type: v1alpha1.ConditionDownloaded, Status: metav1.ConditionTrue, Reason: "Scripted", LastTransitionTime: epoch},
		says(v1alpha1.ConditionAdmitted, metav1.ConditionUnknown), says(v1alpha1.ConditionLoaded, metav1.ConditionFalse), says(v1alpha1.ConditionServing, metav1.ConditionTrue),
	}
}

// end stops an engine and counts the freed bytes.
func (a *Agent) end(order v1alpha1.Assignment, why v1alpha1.ReclaimReason) {
	uid := order.ReplicaUID
	delete(a.running, uid)
	a.freed[uid] += a.script.Footprint
	a.total += a.script.Footprint
	r := v1alpha1.Reclaim{
		ID: fmt.Sprintf("%s/%d/%d", uid, order.Epoch, a.loads[uid]), Namespace: order.Namespace, Name: order.Name, ReplicaUID: uid, Epoch: order.Epoch,
		Load: a.loads[uid], Reason: why, Exit: v1alpha1.ExitClean, FreedBytes: ptr.To(a.script.Footprint), HostCheck: v1alpha1.HostCheckVerified, Time: metav1.NowMicro(),
	}
	a.reclaims = append([]v1alpha1.Reclaim{r}, a.reclaims...)
	if len(a.reclaims) > 16 {
		a.reclaims = a.reclaims[:16]
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
