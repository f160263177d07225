package responsecache

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/responses"
)

func entry(id, tenant, status string, text string) Entry {
	return Entry{Tenant: tenant, Response: responses.Response{ID: id, Status: status}, Talk: []responses.Item{{ID: "msg_" + id, Role: "user", Content: []responses.Part{{Text: text}}}}}
}

func has(s *Cache, id, tenant string) bool { _, ok := s.Get(id, tenant); return ok }

func TestTheOldestGoesForWantOfRoom(t *testing.T) {
	const most = 10 * (entryBytes + 2000)
	s := &Cache{Bytes: most, Age: time.Hour}
	for i := range 100 {
		if !s.Put(entry(fmt.Sprint(i), "", responses.StatusCompleted, strings.Repeat("x", 1000))) {
			t.Fatal("no room")
		}
		if held, _ := s.Held(); held > most {
			t.Fatalf("%d bytes are held", held)
		}
	}
	held, n := s.Held()
	if n < 10 || n > 12 || !has(s, "99", "") || has(s, "50", "") || held < n64(n)*entryBytes {
		t.Errorf("%d kept, %d bytes", n, held)
	}
	if s.Put(entry("huge", "", "", strings.Repeat("x", most))) || has(s, "huge", "") || !has(s, "99", "") {
		t.Error("what can never fit made others go")
	}
}

func n64(n int) int64 { return int64(n) }

func TestAgeEndsWhatIsKept(t *testing.T) {
	now := time.Unix(1000, 0)
	s := &Cache{Bytes: 1 << 20, Age: time.Minute, Now: func() time.Time { return now }}
	s.Put(entry("a", "", responses.StatusInProgress, ""))
	now = now.Add(59 * time.Second)
	s.End(entry("a", "", responses.StatusCompleted, "").Response) // its age is that of its beginning
	if !has(s, "a", "") {
		t.Error("gone early")
	}
	now = now.Add(time.Second)
	if has(s, "a", "") {
		t.Error("kept for too long")
	}
	if held, n := s.Held(); held != 0 || n != 0 {
		t.Errorf("%d bytes of %d are held", held, n)
	}
}

// A request may look up thousands of items, under the lock of all tenants: expired
// responses are searched for once in a while, not for each.
func TestExpiredResponsesAreNotSearchedForAtEachLookUp(t *testing.T) {
	now := time.Unix(1000, 0)
	s := &Cache{Bytes: 1 << 20, Age: time.Minute, Now: func() time.Time { return now }}
	s.Put(entry("a", "", responses.StatusCompleted, ""))
	sweeps, last := 0, s.swept
	for range 1000 {
		now = now.Add(10 * time.Millisecond)
		if _, ok := s.Item("msg_a", ""); !ok {
			t.Fatal("the item is lost")
		}
		if s.swept != last {
			sweeps, last = sweeps+1, s.swept
		}
	}
	if want := int(10 * time.Second / sweepEvery); sweeps < want-1 || sweeps > want {
		t.Errorf("%d searches in 10 s, want %d", sweeps, want)
	}
}

func TestTenantsAreApart(t *testing.T) {
	s := &Cache{Bytes: 1 << 20, Age: time.Minute}
	s.Put(entry("a", "team", responses.StatusInProgress, ""))
	if has(s, "a", "") || has(s, "a", "other") || s.Delete("a", "other") {
		t.Error("another's is seen")
	}
	if _, found, _ := s.Cancel("a", "other"); found {
		t.Error("another's is cancelled")
	}
	if !has(s, "a", "team") || !s.Delete("a", "team") || has(s, "a", "team") {
		t.Error("the tenant does not see it")
	}
}

func TestWhatWasCancelledOrDeletedStaysSo(t *testing.T) {
	s := &Cache{Bytes: 1 << 20, Age: time.Minute}
	s.Put(entry("a", "", responses.StatusInProgress, ""))
	if e, found, ok := s.Cancel("a", ""); !found || !ok || e.Response.Status != responses.StatusCancelled {
		t.Errorf("%+v %v %v", e, found, ok)
	}
	s.End(entry("a", "", responses.StatusCompleted, "").Response)
	if e, _ := s.Get("a", ""); e.Response.Status != responses.StatusCancelled {
		t.Errorf("it is %s", e.Response.Status)
	}
	if _, found, ok := s.Cancel("a", ""); !found || ok {
		t.Error("cancelled twice")
	}
	s.Delete("a", "")
	s.End(entry("a", "", responses.StatusCompleted, "").Response)
	if has(s, "a", "") {
		t.Error("it came back")
	}
}

// TestCallsAndToolsCount: a response of calls takes what they take.
// What a client can make large counts, wherever the response keeps it.
func TestAllThatIsKeptCounts(t *testing.T) {
	const long = 100 << 10
	text := strings.Repeat("x", long)
	call := responses.Item{Type: responses.ItemCall, Arguments: &text}
	output := responses.Item{Type: responses.ItemOutput, Output: &text}
	for name, e := range map[string]Entry{
		"a call that was made": {Response: responses.Response{Output: []responses.Item{call}}},
		"an output":            {Input: []responses.Item{output}},
		"the conversation":     {Talk: []responses.Item{call}},
		"a label":              {Response: responses.Response{User: &text}},
		"another label":        {Response: responses.Response{SafetyIdentifier: &text, PromptCacheKey: new("x")}},
		"a text's format":      {Response: responses.NewAnswer("resp_1", 1, &responses.Request{Format: map[string]string{"schema": text}}).Response},
		"empty parts":          {Input: []responses.Item{{Type: responses.ItemMessage, Content: make([]responses.Part, long/80)}}},
		"tools": {Response: responses.NewAnswer("resp_1", 1, &responses.Request{
			Tools: []responses.DeclaredTool{{Tool: responses.Tool{Name: "f", Parameters: []byte(`{"description":"` + text + `"}`)}}}}).Response},
	} {
		n := e.bytes()
		for _, item := range new(Cache).sizes(&e) {
			n += item
		}
		if n < long || n > 2*long {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
}

// An item is the input or the output of one response, or of several.
func TestItemsAreFoundAsLongAsAResponseHasThem(t *testing.T) {
	item := func(id string) responses.Item { return responses.Item{ID: id, Type: responses.ItemMessage} }
	s := &Cache{Bytes: 1 << 20, Age: time.Minute}
	s.Put(Entry{Tenant: "team", Response: responses.Response{ID: "a", Status: responses.StatusInProgress}, Input: []responses.Item{item("in")}})
	if _, ok := s.Item("out", "team"); ok {
		t.Error("an item is found before it exists")
	}
	s.End(responses.Response{ID: "a", Status: responses.StatusCompleted, Output: []responses.Item{item("out")}})
	s.Put(Entry{Tenant: "team", Response: responses.Response{ID: "b", Status: responses.StatusCompleted}, Input: []responses.Item{item("out"), item("out")}})
	found := func(id, tenant string) bool {
		i, ok := s.Item(id, tenant)
		return ok && i.ID == id
	}
	if !found("in", "team") || !found("out", "team") || found("out", "other") || found("out", "") || found("none", "team") {
		t.Error("items are not found, or not by their tenant alone")
	}
	s.Delete("a", "team")
	if found("in", "team") || !found("out", "team") {
		t.Error("an item went or stayed without its response")
	}
	s.Delete("b", "team")
	if found("out", "team") || len(s.items) != 0 {
		t.Errorf("%d items are left", len(s.items))
	}
}

// Each turn of a conversation is stored with all that came before.
func TestItemsOfOneConversationCountOnce(t *testing.T) {
	const turns, text = 50, 10 << 10
	s := &Cache{Bytes: 4 << 20, Age: time.Hour}
	var talk []responses.Item
	for n := range turns {
		item := responses.Item{ID: fmt.Sprint("msg_", n), Type: responses.ItemMessage, Content: []responses.Part{{Text: strings.Repeat("x", text)}}}
		talk = append(talk[:n:n], item)
		if !s.Put(Entry{Response: responses.Response{ID: fmt.Sprint(n), Output: []responses.Item{item}}, Input: talk[:n], Talk: talk}) {
			t.Fatal("no room")
		}
	}
	held, n := s.Held()
	if n != turns || held < turns*text || held > 3*turns*text {
		t.Errorf("%d responses take %d bytes", n, held)
	}
	for n := range turns {
		if _, ok := s.Item(fmt.Sprint("msg_", n), ""); !ok {
			t.Errorf("item %d is not found", n)
		}
		s.Delete(fmt.Sprint(n), "")
	}
	if held, _ := s.Held(); held != 0 || len(s.items) != 0 {
		t.Errorf("%d bytes and %d items are left", held, len(s.items))
	}
}

// TestAttackTheSizeOfALongConversation: any request for a response asks for it, before anything
// bounds the request.
func TestAttackTheSizeOfALongConversation(t *testing.T) {
	s, e := &Cache{Bytes: 64 << 20, Age: time.Hour}, entry("resp", "t", responses.StatusCompleted, "x")
	for i := range 10_000 {
		e.Input = append(e.Input, responses.Item{ID: fmt.Sprint("msg_", i), Type: responses.ItemMessage, Content: []responses.Part{{Text: "x"}}})
	}
	if !s.Put(e) || s.Size("resp", "t") < 10_000 {
		t.Fatalf("a size of %d bytes", s.Size("resp", "t"))
	}
	if n := testing.AllocsPerRun(10, func() { s.Size("resp", "t") }); n > 5 {
		t.Errorf("%.0f allocations for a size", n)
	}
}

// What one tenant stores does not push out what another has.
func TestATenantFillsOnlyItsShare(t *testing.T) {
	s := &Cache{Bytes: 64 << 20, Age: time.Hour}
	s.Put(entry("of a", "key-a", responses.StatusCompleted, "short"))
	for i := range 8 {
		s.Put(entry(fmt.Sprint("of b ", i), "key-b", responses.StatusCompleted, strings.Repeat("x", 15<<20)))
	}
	if !has(s, "of a", "key-a") || has(s, "of b 0", "key-b") || !has(s, "of b 7", "key-b") {
		t.Error("a tenant pushed out another's response, or not its own oldest")
	}
	for i := range 4 { // as much as the other has
		s.Put(entry(fmt.Sprint("of a ", i), "key-a", responses.StatusCompleted, strings.Repeat("x", 15<<20)))
	}
	mine, others := 0, 0
	for i := range 8 {
		if has(s, fmt.Sprint("of a ", i), "key-a") {
			mine++
		}
		if has(s, fmt.Sprint("of b ", i), "key-b") {
			others++
		}
	}
	if mine != 2 || others != 2 {
		t.Errorf("one tenant has %d large responses, the other %d", mine, others)
	}
	if held, _ := s.Held(); held > s.Bytes {
		t.Errorf("%d bytes are held", held)
	}
}

// TestLongItemsAreMeasuredOnce: requests of a few bytes continue a conversation of many, and
// measuring those takes a processor from all others.
func TestLongItemsAreMeasuredOnce(t *testing.T) {
	s := &Cache{Bytes: 64 << 20, Age: time.Hour}
	text := strings.Repeat("x", 15<<20)
	long := responses.Item{ID: "fc_1", Type: responses.ItemCall, Arguments: &text}
	measured, continued := time.Hour, time.Hour
	store := func(id string) {
		if !s.Put(Entry{Response: responses.Response{ID: id, Status: responses.StatusInProgress}, Talk: []responses.Item{long}}) {
			t.Fatal("no room")
		}
		s.End(responses.Response{ID: id, Status: responses.StatusCompleted})
	}
	store("first")
	for i := range 5 {
		began := time.Now()
		long.Bytes()
		measured = min(measured, time.Since(began))
		began = time.Now()
		store(fmt.Sprint(i))
		continued = min(continued, time.Since(began))
	}
	if continued > measured/2 {
		t.Errorf("a response that continues another takes %v, and measuring the items of that %v", continued, measured)
	}
	for _, id := range []string{"first", "0", "1", "2", "3", "4"} {
		s.Delete(id, "")
	}
	if held, _ := s.Held(); held != 0 {
		t.Errorf("%d bytes are left", held)
	}
}

// TestSettingsOfAKnownLengthAreNotEncoded to count them: a response may repeat megabytes of its request.
func TestSettingsOfAKnownLengthAreNotEncoded(t *testing.T) {
	const long = 8 << 20
	settings, s := strings.Repeat("x", long), &Cache{Bytes: 4 * long, Age: time.Hour}
	e := entry("a", "", responses.StatusInProgress, "")
	e.Response.Instructions, e.Shown = &settings, long+100
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	s.Put(e)
	e.Response.Status = responses.StatusCompleted
	s.End(e.Response)
	runtime.ReadMemStats(&after)
	if made := after.TotalAlloc - before.TotalAlloc; made > long/2 {
		t.Errorf("%d bytes were allocated to keep %d", made, long)
	}
	if held, n := s.Held(); n != 1 || held < e.Shown {
		t.Errorf("%d bytes are counted for %d responses, want %d for one", held, n, e.Shown)
	}
}
