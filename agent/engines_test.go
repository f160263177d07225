package agent

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"metalfleet.dev/metalfleet/agent/memory"
	"metalfleet.dev/metalfleet/agent/pool"
	"metalfleet.dev/metalfleet/agent/serve"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/footprint"
	"metalfleet.dev/metalfleet/metal/wire"
)

// Two replicas of one model share their names; the full name is listed where no
// served name is set.
func TestAgentListsModelsLikeTheGateway(t *testing.T) {
	got := listed([]pool.Endpoint{
		{UID: "1", Namespace: "b", ServedNames: []string{"two", "b/two"}}, {UID: "2", Namespace: "b", ServedNames: []string{"two", "b/two"}},
		{UID: "3", Namespace: "a", ServedNames: []string{"x", "one", "Org/One-1", "a/one"}}, {UID: "4", Namespace: "c", ServedNames: []string{"c/two"}}, {UID: "5", Namespace: "d"},
	})
	want := []openai.Model{openai.NewModel("Org/One-1", 0, "a"), openai.NewModel("c/two", 0, "c"), openai.NewModel("one", 0, "a"), openai.NewModel("two", 0, "b"), openai.NewModel("x", 0, "a")}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// The response has Retry-After where waiting can help.
func TestRefusedLoadNamesCeilingUsedAndNeededBytes(t *testing.T) {
	for name, c := range map[string]struct {
		err  *pool.RoomError
		want *wire.Refusal
	}{
		"too large for good": {err: &pool.RoomError{Cause: &memory.NoRoomError{Needed: 60, Reserved: 60, Capacity: 90, Ceiling: 100}},
			want: &wire.Refusal{Code: wire.Code_CODE_NO_ROOM, UsedBytes: 60, NeededBytes: 60, LimitBytes: 100}},
		"may fit later": {err: &pool.RoomError{Cause: &memory.NoRoomError{Needed: 60, Reserved: 60, InUse: 10, Capacity: 90, Ceiling: 100}, RetryAfter: 5 * time.Second},
			want: &wire.Refusal{Code: wire.Code_CODE_NO_ROOM, UsedBytes: 70, NeededBytes: 60, LimitBytes: 100, RetryAfterMilliseconds: 5000}},
		"short of free memory": {err: &pool.RoomError{Cause: &memory.NoRoomError{Needed: 60, Reserved: 60, InUse: 10, Ceiling: 50, Term: footprint.Dynamic}, RetryAfter: time.Second},
			want: &wire.Refusal{Code: wire.Code_CODE_NO_ROOM, UsedBytes: 10, NeededBytes: 60, LimitBytes: 50, RetryAfterMilliseconds: 1000}},
	} {
		got := wire.RefusalOf(translate(fmt.Errorf("acquire: %w", c.err)))
		if got.GetCode() != c.want.GetCode() || got.GetUsedBytes() != c.want.GetUsedBytes() || got.GetNeededBytes() != c.want.GetNeededBytes() ||
			got.GetLimitBytes() != c.want.GetLimitBytes() || got.GetRetryAfterMilliseconds() != c.want.GetRetryAfterMilliseconds() || got.GetMessage() == "" {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if got := wire.RefusalOf(translate(&pool.LoadError{Reason: "InvalidModel", Message: "no layers", RetryAfter: time.Second})); got.GetCode() != wire.Code_CODE_NOT_READY || got.GetRetryAfterMilliseconds() != 1000 {
		t.Errorf("a load that failed: %v", got)
	}
	if err := translate(&pool.NotReadyError{}); !errors.Is(err, serve.ErrNotReady) {
		t.Errorf("not ready: %v", err)
	}
	if err := translate(nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}
