// Package status is how reconcilers write: conditions that keep their transition times, and
// server-side apply of only the fields a reconciler owns.
//
// Callers name the fields with generated apply configurations, under a field manager
// of their own. Both a spec and a status are forced: the operator alone decides on these fields. An agent that
// applies the same condition would own it too, and could keep it as it is, and who may change the metadata of an object may
// claim any field in managedFields.
// It decides nothing; what is written is the caller's. Callers compare before
// they write, so that an unchanged object is never written.
//
// Start reading at Merge and Apply.
package status

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// maxMessage bounds a condition's message, far within the schema: a message may quote what
// tenants and Macs wrote, and is stored with each replica and kept in the operator's memory. Its
// end has the next step.
const (
	maxMessage = 2 << 10
	tailBytes  = 512
)

// Condition is the writer's part of a condition.
type Condition struct {
	Type    string
	Status  metav1.ConditionStatus
	Reason  string
	Message string
}

// True, False and Unknown return conditions.
func True(t, reason, message string) Condition {
	return Condition{t, metav1.ConditionTrue, reason, message}
}

// False returns a condition that does not hold.
func False(t, reason, message string) Condition {
	return Condition{t, metav1.ConditionFalse, reason, message}
}

// Unknown returns a condition that is not known yet.
func Unknown(t, reason, message string) Condition {
	return Condition{t, metav1.ConditionUnknown, reason, message}
}

// Merge stamps the wanted conditions: one whose status is unchanged keeps the time of its
// last transition, unless that is in the future: the clock of an operator was ahead, and what is
// counted from that time would last until then. Conditions of previous that are not wanted are
// not in the result.
func Merge(previous []metav1.Condition, generation int64, now time.Time, wanted ...Condition) []metav1.Condition {
	out := make([]metav1.Condition, 0, len(wanted))
	for _, w := range wanted {
		c := metav1.Condition{
			Type: w.Type, Status: w.Status, Reason: w.Reason, Message: truncate(w.Message),
			ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
		}
		if p := meta.FindStatusCondition(previous, w.Type); p != nil && p.Status == c.Status && !p.LastTransitionTime.After(now) {
			c.LastTransitionTime = p.LastTransitionTime
		}
		out = append(out, c)
	}
	return out
}

// Shorten leaves out the end of a message of more than most bytes, between whole characters: an
// invalid one would be stored as another, and written again in each pass.
func Shorten(s string, most int) string {
	const mark = "..."
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most-len(mark)], "") + mark
}

// truncate leaves out the middle of a long message, as Shorten does the end.
func truncate(s string) string {
	const gap = " ... "
	if len(s) <= maxMessage {
		return s
	}
	return strings.ToValidUTF8(s[:maxMessage-tailBytes-len(gap)], "") + gap + strings.ToValidUTF8(s[len(s)-tailBytes:], "")
}

// Pick returns the conditions of the given types, in their order.
func Pick(conditions []metav1.Condition, kinds ...string) []metav1.Condition {
	var out []metav1.Condition
	for _, k := range kinds {
		if c := meta.FindStatusCondition(conditions, k); c != nil {
			out = append(out, *c)
		}
	}
	return out
}

// Equal compares two values as they would be written: a missing list and an empty one are
// equal.
func Equal(a, b any) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && slices.Equal(x, y)
}

// Configuration is a generated apply configuration of one object.
type Configuration interface {
	runtime.ApplyConfiguration
	GetKind() *string
	GetName() *string
}

// Apply writes the fields of a spec that only the operator writes, and takes over those that
// another manager claims.
func Apply(ctx context.Context, c client.Client, manager string, o Configuration) error {
	return describe(o, c.Apply(ctx, o, client.FieldOwner(manager), client.ForceOwnership))
}

// ApplyStatus writes the fields of a status that a field manager owns, and takes
// over those that another manager applied.
func ApplyStatus(ctx context.Context, c client.Client, manager string, o Configuration) error {
	return describe(o, c.Status().Apply(ctx, o, client.FieldOwner(manager), client.ForceOwnership))
}

// RemoveFinalizer removes a finalizer that an object has. It is locked by the list of finalizers
// alone: someone who writes the object all the time does not keep it from being deleted.
func RemoveFinalizer(ctx context.Context, c client.Client, manager string, o client.Object, finalizer string) error {
	return removeFinalizer(ctx, c, manager, o, finalizer)
}

// RemoveFinalizerUnlessSpecChanged removes a finalizer as RemoveFinalizer does, from an object whose
// spec only the operator writes: it is locked by the spec as well.
func RemoveFinalizerUnlessSpecChanged(ctx context.Context, c client.Client, manager string, o client.Object, finalizer string) error {
	return removeFinalizer(ctx, c, manager, o, finalizer, operation{"test", "/metadata/generation", o.GetGeneration()})
}

// operation is one of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

func removeFinalizer(ctx context.Context, c client.Client, manager string, o client.Object, finalizer string, tests ...operation) error {
	path := fmt.Sprintf("/metadata/finalizers/%d", slices.Index(o.GetFinalizers(), finalizer))
	patch, err := json.Marshal(append(tests, operation{"test", "/metadata/uid", o.GetUID()}, operation{"test", path, finalizer}, operation{"remove", path, nil}))
	if err == nil {
		err = c.Patch(ctx, o, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(manager))
	}
	if err != nil {
		return fmt.Errorf("remove finalizer %s of %s: %w", finalizer, o.GetName(), err)
	}
	return nil
}

func describe(o Configuration, err error) error {
	if err != nil {
		return fmt.Errorf("apply %s %s: %w", ptr.Deref(o.GetKind(), ""), ptr.Deref(o.GetName(), ""), err)
	}
	return nil
}

// Conditions converts conditions for an apply configuration.
func Conditions(list []metav1.Condition) []*metav1ac.ConditionApplyConfiguration {
	out := make([]*metav1ac.ConditionApplyConfiguration, 0, len(list))
	for _, c := range list {
		a := metav1ac.Condition().WithType(c.Type).WithStatus(c.Status).WithReason(c.Reason).WithMessage(c.Message).
			WithLastTransitionTime(c.LastTransitionTime)
		if c.ObservedGeneration != 0 {
			a.WithObservedGeneration(c.ObservedGeneration)
		}
		out = append(out, a)
	}
	return out
}

// Convert returns the apply configuration of a value of the API by way of JSON:
// every field that the value has written is one that the caller applies.
func Convert[T any](value any) (*T, error) {
	out := new(T)
	b, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(b, out)
	}
	if err != nil {
		return nil, fmt.Errorf("convert %T to %T: %w", value, out, err)
	}
	return out, nil
}
