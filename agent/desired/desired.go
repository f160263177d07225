// Package desired turns the Mac's own MacNode into orders.
//
// It owns the checks that orders pass before anybody follows them: the API
// server checked them too, but the agent runs programs and opens files by
// them. It refuses single assignments that cannot be meant and says so, and it
// never takes an error, a missing object or an answer without identity for
// "nothing is wanted".
//
// Start reading at read.
package desired

import (
	"context"
	"fmt"
	"regexp"
	"strings"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/agent/journal"
	"metalfleet.dev/metalfleet/agent/register"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Source watches the Mac's own MacNode.
type Source struct {
	client client.WithWatch
	name   string
	log    logr.Logger
}

// NewSource follows the MacNode called name.
func NewSource(c client.WithWatch, name string, log logr.Logger) *Source {
	return &Source{client: c, name: name, log: log}
}

// Run delivers orders whenever they change, until ctx ends.
func (s *Source) Run(ctx context.Context, deliver func(journal.Desired)) error {
	var last gate
	return register.Follow(ctx, s.client, &v1alpha1.MacNodeList{}, types.NamespacedName{Name: s.name}, s.log, func(m *v1alpha1.MacNode) {
		if last.passes(m) {
			deliver(read(m))
		}
	})
}

// gate lets each generation of an object through once, and none that is older
// than what was seen: a lagging server must not bring back old orders.
type gate struct {
	uid        types.UID
	generation int64
}

func (g *gate) passes(m *v1alpha1.MacNode) bool {
	if m.UID == g.uid && m.Generation <= g.generation {
		return false
	}
	g.uid, g.generation = m.UID, m.Generation
	return true
}

// safeID is what may become part of a file name.
var safeID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)

// tokenRef names a key of the Mac's Secret, or none.
var tokenRef = regexp.MustCompile(`^([0-9a-f]{64})?$`)

// read checks what a MacNode orders.
func read(m *v1alpha1.MacNode) journal.Desired {
	o := journal.Desired{UID: string(m.UID), Generation: m.Generation, Memory: m.Spec.Memory, PinnedWeights: m.Spec.PinnedWeights}
	seen := map[string]bool{}
	for _, a := range m.Spec.Assignments {
		err := check(&a)
		if err == nil && seen[a.ReplicaUID] {
			err = fmt.Errorf("replica %s is assigned twice", a.ReplicaUID)
		}
		if err != nil {
			o.Invalid = append(o.Invalid, journal.InvalidAssignment{ReplicaUID: a.ReplicaUID, Epoch: max(1, a.Epoch), Message: err.Error()})
			continue
		}
		seen[a.ReplicaUID] = true
		o.Assignments = append(o.Assignments, a)
	}
	o.Settings, o.SettingsRefused = checkSettings(m.Spec.Settings)
	if c := m.Spec.ClearCache; c != nil && checkClear(c) {
		o.ClearCache = c.DeepCopy()
	}
	if a := m.Spec.Agent; a != nil && checkAgent(a) {
		o.Agent = a.DeepCopy()
	}
	for _, i := range m.Spec.Inspections {
		if safeID.MatchString(i.ID) && i.Source != "" && tokenRef.MatchString(i.TokenRef) {
			o.Inspections = append(o.Inspections, i)
		}
	}
	return o
}

// What an order of an agent may hold: its version goes into no path and no
// command line, but is compared with what a program prints.
var (
	agentVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`)
	agentDigest  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// checkSettings leaves out what cannot be meant, so that the agent stays as it was
// started there, and names it.
func checkSettings(s v1alpha1.AgentSettings) (good v1alpha1.AgentSettings, refused string) {
	var wrong []string
	switch s.LogLevel {
	case "", v1alpha1.LogInfo, v1alpha1.LogDebug:
		good.LogLevel = s.LogLevel
	default:
		wrong = append(wrong, fmt.Sprintf("unknown logLevel %q: this agent supports Info and Debug", s.LogLevel))
	}
	if q := s.CacheLimit; q != nil && q.Value() < 1 {
		wrong = append(wrong, fmt.Sprintf("cacheLimit is %s, want more than zero", q))
	} else if q != nil {
		good.CacheLimit = ptr.To(q.DeepCopy())
	}
	if q := s.CacheFree; q != nil && q.Value() < 0 {
		wrong = append(wrong, fmt.Sprintf("cacheFree is %s, want zero or more", q))
	} else if q != nil {
		good.CacheFree = ptr.To(q.DeepCopy())
	}
	return good, strings.Join(wrong, "; ")
}

// clearRequest is what an order to clear caches may be called.
var clearRequest = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// checkClear refuses an order to clear caches whose tier is not known: all would
// be more than was meant.
func checkClear(c *v1alpha1.CacheClear) bool {
	switch c.Tier {
	case "", v1alpha1.CacheTierAll, v1alpha1.CacheTierMemory, v1alpha1.CacheTierDisk:
		return clearRequest.MatchString(c.Request)
	}
	return false
}

// checkAgent refuses an order of an agent that cannot be followed.
func checkAgent(a *v1alpha1.AgentOrder) bool {
	return agentVersion.MatchString(a.Version) && agentDigest.MatchString(a.SHA256) && strings.HasPrefix(a.Source, "https://") &&
		a.Attempt >= 1 && (a.DrainSeconds == nil || *a.DrainSeconds >= 0)
}

// check refuses an assignment that cannot be followed.
func check(a *v1alpha1.Assignment) error {
	switch {
	case !safeID.MatchString(a.ReplicaUID):
		return fmt.Errorf("replica UID %q is not a valid UID", a.ReplicaUID)
	case a.Epoch < 1:
		return fmt.Errorf("epoch is %d, want at least 1", a.Epoch)
	case a.ReservedBytes < 1:
		return fmt.Errorf("reservation is %d bytes, want more than zero", a.ReservedBytes)
	case a.Context.MaxTokens < 1 || a.Context.MaxConcurrentRequests < 1 || a.Context.KVCacheTokens < a.Context.MaxTokens:
		return fmt.Errorf("cannot serve a context of %d tokens for %d sequences with %d cache tokens", a.Context.MaxTokens, a.Context.MaxConcurrentRequests, a.Context.KVCacheTokens)
	case a.PrefixCache.DiskBytes < 0 || a.PrefixCache.QueueBytes < 0 || a.PrefixCache.DiskBytes > 0 && a.PrefixCache.QueueBytes == 0:
		return fmt.Errorf("cannot keep a disk cache of %d bytes with a write queue of %d", a.PrefixCache.DiskBytes, a.PrefixCache.QueueBytes)
	case a.DrainSeconds < 0 || a.DrainSeconds > 86400:
		return fmt.Errorf("drainSeconds is %d, want 0 to 86400", a.DrainSeconds)
	}
	switch a.Desired {
	case v1alpha1.DesiredDrained:
		return nil // an assignment to drain is always valid
	case v1alpha1.DesiredRunning, v1alpha1.DesiredDownloaded:
	default:
		return fmt.Errorf("this agent does not support the desired state %q", a.Desired)
	}
	if err := checkResidency(a.Residency); err != nil {
		return err
	}
	if !tokenRef.MatchString(a.TokenRef) {
		return fmt.Errorf("tokenRef %q is not a valid reference", a.TokenRef)
	}
	if err := a.Model.Validate(); err != nil {
		return err
	}
	return a.Model.Facts.Validate()
}

// maxIdleSeconds is the bound of the schema: 30 days.
const maxIdleSeconds = 2592000

// checkResidency takes no word for Always: that is what operators meant before
// they could say it.
func checkResidency(r v1alpha1.Residency) error {
	switch r.Policy {
	case "", v1alpha1.ResidencyAlways, v1alpha1.ResidencyOnDemand:
	default:
		return fmt.Errorf("unknown residency policy %q: this agent supports %s and %s", r.Policy, v1alpha1.ResidencyAlways, v1alpha1.ResidencyOnDemand)
	}
	if r.IdleSeconds < 0 || r.IdleSeconds > maxIdleSeconds {
		return fmt.Errorf("residency idleSeconds is %d, want 0 to %d", r.IdleSeconds, maxIdleSeconds)
	}
	return nil
}
