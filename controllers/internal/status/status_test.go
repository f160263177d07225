//go:build !race

package status

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
)

func TestMergeKeepsTransitionTimes(t *testing.T) {
	t0 := time.Unix(1000, 0)
	first := Merge(nil, 1, t0, True("A", "Yes", ""), False("B", "No", ""))
	second := Merge(first, 2, t0.Add(time.Minute), True("A", "StillYes", "with another message"), True("B", "Yes", ""))
	if a := meta.FindStatusCondition(second, "A"); !a.LastTransitionTime.Time.Equal(t0) || a.Reason != "StillYes" || a.ObservedGeneration != 2 {
		t.Errorf("A did not change its status: %+v", a)
	}
	if b := meta.FindStatusCondition(second, "B"); !b.LastTransitionTime.Time.Equal(t0.Add(time.Minute)) {
		t.Errorf("B changed its status: %+v", b)
	}
	if third := Merge(second, 2, t0, True("A", "Yes", "")); len(third) != 1 {
		t.Errorf("a condition that is not wanted stayed: %+v", third)
	}
}

func TestMergeBoundsMessages(t *testing.T) {
	got := Merge(nil, 1, time.Unix(0, 0), False("A", "No", strings.Repeat("x", 2*maxMessage)))
	if len(got[0].Message) != maxMessage {
		t.Errorf("message of %d bytes, the schema allows %d", len(got[0].Message), maxMessage)
	}
}

func TestEqualTreatsAbsentAndEmptyAlike(t *testing.T) {
	type s struct {
		L []string `json:"l,omitempty"`
	}
	if !Equal(s{}, s{L: []string{}}) || Equal(s{L: []string{"a"}}, s{}) {
		t.Error("absent and empty lists must be equal, others not")
	}
}
