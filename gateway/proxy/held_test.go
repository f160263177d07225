package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/dispatch"
)

// A client slowly reads a stored response of 1 MiB a thousand times at once: each is
// delivered, and the buffers of all stay within their limit.
func TestAttackManyLargeResponses(t *testing.T) {
	const most = 4 << 20
	r := newRoom(most)
	text := bytes.Repeat([]byte("x"), 2*wholeBytes)
	var all []*held
	sum := 0
	for i := range 100 {
		memory := r.hold(source{mac: fmt.Sprint("mac-", i%4)})
		all = append(all, memory)
		body := bytes.NewReader(text)
		first, complete, err := readFirst(body, memory)
		rest, _ := io.ReadAll(body)
		if err != nil || complete || len(first) < blockBytes || !bytes.Equal(append(bytes.Clone(first), rest...), text) {
			t.Fatalf("%d bytes first, %d then, complete %t: %v", len(first), len(rest), complete, err)
		}
		if len(first) > blockBytes {
			sum += len(first)
		}
	}
	if sum > most {
		t.Errorf("%d bytes are held back of %d", sum, most)
	}
	for _, memory := range all {
		memory.free()
		memory.free()
	}
	if r.all != 0 || len(r.macs)+len(r.shares)+len(r.sources) != 0 {
		t.Errorf("%d bytes are not given back: %v", r.all, r.macs)
	}
}

func TestASmallResponseIsHeldBackWhole(t *testing.T) {
	for _, n := range []int{0, 1, blockBytes - 1, blockBytes, blockBytes + 1, wholeBytes - 1} {
		memory := newRoom(heldBytes).hold(source{mac: "m"})
		first, complete, err := readFirst(strings.NewReader(strings.Repeat("x", n)), memory)
		if err != nil || !complete || len(first) != n {
			t.Errorf("%d bytes: %d, complete %t, %v", n, len(first), complete, err)
		}
		memory.free()
	}
}

// A compromised Mac sends endless events on all streams: other Macs keep memory for theirs.
func TestAttackEventsWithoutEnd(t *testing.T) {
	r := newRoom(4 * eventBytes)
	endless := func() error {
		b := newBlocks(io.MultiReader(strings.NewReader("data: "), zeros{}), dialect.OpenAI, r.hold(source{mac: "evil"}))
		_, err := b.next()
		return err // its memory stays in use, as while a client reads
	}
	var noRoom bool
	for range 100 {
		err := endless()
		if !errors.Is(err, errTooLong) && !errors.Is(err, errNoRoom) {
			t.Fatal(err)
		}
		noRoom = noRoom || errors.Is(err, errNoRoom)
	}
	if !noRoom || r.all > 2*eventBytes {
		t.Errorf("%d bytes are held back", r.all)
	}
	for mac, want := range map[string]dispatch.Outcome{"evil": dispatch.OutcomeRejected, "mac-a": dispatch.OutcomeUnknown} {
		for name, err := range map[string]error{"before it begins": r.refusal(mac), "later": fmt.Errorf("x: %w", &openai.Error{Status: 503, Cause: r.refusal(mac)})} {
			failed := &dispatch.Failure{Reason: dispatch.ReasonStream, Err: err}
			if name == "later" {
				failed = nil
			}
			if how := outcomeOf(200, failed, err); how != want {
				t.Errorf("a response of %s for which memory is lacking %s: outcome %d, want %d", mac, name, how, want)
			}
		}
	}
	event := "data: " + strings.Repeat("x", eventBytes/4) + "\n\n"
	b := newBlocks(strings.NewReader(event), dialect.OpenAI, r.hold(source{mac: "mac-a"}))
	if got, err := b.next(); string(got) != event {
		t.Errorf("another Mac's event of %d bytes: %d, %v", len(event), len(got), err)
	}
	b.free()
}

// A tenant reads hundreds of stored responses slowly: streams of others from the same Mac
// have memory for their events.
func TestAttackResponsesThatATenantReadsSlowly(t *testing.T) {
	r := newRoom(heldBytes)
	text := bytes.Repeat([]byte("x"), 2*wholeBytes)
	for range 400 {
		if _, complete, err := readFirst(bytes.NewReader(text), r.hold(source{"mac-a", "slow"})); err != nil || complete {
			t.Fatalf("complete %t: %v", complete, err)
		}
	}
	event := "data: " + strings.Repeat("x", eventBytes/4) + "\n\n"
	for _, tenant := range []string{"b", "c"} {
		b := newBlocks(strings.NewReader(event), dialect.OpenAI, r.hold(source{"mac-a", tenant}))
		if got, err := b.next(); string(got) != event {
			t.Errorf("tenant %s gets %d bytes of an event of %d: %v", tenant, len(got), len(event), err)
		}
	}
	failed := &dispatch.Failure{Reason: reasonOf(errNoRoom), Err: fmt.Errorf("read: %w", errNoRoom)}
	if how := outcomeOf(0, failed, nil); how != dispatch.OutcomeUnknown || failed.Reason == dispatch.ReasonConnection {
		t.Errorf("lack of memory counts against the Mac: reason %s, outcome %d", failed.Reason, how)
	}
}

// Without keys, an address has the share of a tenant.
func TestResponsesThatAnAddressReadsSlowlyLeaveMemory(t *testing.T) {
	f := &forwarder{held: newRoom(heldBytes)}
	memory := func(address string) *held {
		return delivery{mac: "mac-a", forwarder: f}.memory((&scope{share: address}).in(t.Context()))
	}
	text := bytes.Repeat([]byte("x"), 2*wholeBytes)
	for range 400 {
		if _, complete, err := readFirst(bytes.NewReader(text), memory("192.0.2.1")); err != nil || complete {
			t.Fatalf("complete %t: %v", complete, err)
		}
	}
	event := "data: " + strings.Repeat("x", eventBytes/4) + "\n\n"
	b := newBlocks(strings.NewReader(event), dialect.OpenAI, memory("192.0.2.2"))
	if got, err := b.next(); string(got) != event {
		t.Errorf("another address gets %d bytes of an event of %d: %v", len(got), len(event), err)
	}
}

// TestAStreamKeepsNoRoomAfterALargeEvent: it may be idle for as long as its answer takes.
func TestAStreamKeepsNoRoomAfterALargeEvent(t *testing.T) {
	event := func(n int) string { return "data: " + strings.Repeat("x", n) + "\n\n" }
	for name, c := range map[string]struct {
		reads []string
		held  int64 // at the last read
	}{
		"one event":             {reads: []string{event(1 << 20), event(5)}},
		"with the next":         {reads: []string{event(1<<20) + "data: ", "x\n\n", event(5)}},
		"a part of the next":    {reads: []string{event(20<<10) + "data: " + strings.Repeat("y", blockBytes-7), "z\n\n"}},
		"more than a block":     {reads: []string{event(20<<10) + "data: " + strings.Repeat("y", blockBytes-6), "z\n\n"}, held: 32 << 10},
		"small, large, small":   {reads: []string{event(5), event(3 << 20), event(9), event(9)}},
		"large ones in a row":   {reads: []string{event(9 << 10), event(3 << 20), event(12 << 10), event(9)}},
		"the rest of two reads": {reads: []string{event(40<<10) + event(7) + "da", "ta: y\n\nd", "ata: z\n\n"}},
	} {
		t.Run(name, func(t *testing.T) {
			r, held := newRoom(heldBytes), int64(0)
			var from []io.Reader
			for _, text := range c.reads {
				from = append(from, watched{func() { held = r.all }}, strings.NewReader(text))
			}
			b := newBlocks(io.MultiReader(from...), dialect.OpenAI, r.hold(source{"mac-a", "t"}))
			var got strings.Builder
			block, err := b.next()
			for ; len(block) > 0; block, err = b.next() {
				got.Write(block)
			}
			if want := strings.Join(c.reads, ""); err != io.EOF || got.String() != want {
				t.Errorf("%d bytes of %d: %v", got.Len(), len(want), err)
			}
			if held != c.held {
				t.Errorf("%d bytes are held while the stream is idle, want %d", held, c.held)
			}
			if b.free(); r.all != 0 || len(r.macs)+len(r.shares)+len(r.sources) != 0 {
				t.Errorf("%d bytes are not given back: %v", r.all, r.sources)
			}
		})
	}
}

// watched is an empty part of a stream: read is called when it is reached.
type watched struct{ read func() }

func (w watched) Read([]byte) (int, error) {
	w.read()
	return 0, io.EOF
}

// TestATenantLeavesMemoryOfEveryMac: a part of each Mac's is more than all together.
func TestATenantLeavesMemoryOfEveryMac(t *testing.T) {
	for _, macs := range []int{1, 2, 4, 8, 20, 100} {
		r := newRoom(heldBytes)
		for mac := range macs {
			for size := int64(eventBytes); size > blockBytes; {
				if !r.take(source{fmt.Sprint(mac), "slow"}, size) {
					size /= 2
				}
			}
		}
		for mac := range macs {
			if !r.take(source{fmt.Sprint(mac), "other"}, eventBytes/4) {
				t.Errorf("of %d Macs, one tenant uses %d bytes and leaves another none of Mac %d", macs, r.shares["slow"], mac)
			}
			r.give(source{fmt.Sprint(mac), "other"}, eventBytes/4)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// A compromised Mac sends an error event in each write: the gateway keeps and decodes a bounded part of
// the first, once.
func TestErrorEventsCostNoMoreThanOthers(t *testing.T) {
	const events = 16
	event := `data: {"error":{"type":"` + strings.Repeat("\xff", blockBytes*4) + "\"}}\n\n"
	r := newRoom(heldBytes)
	var froms []io.Reader
	for range events {
		froms = append(froms, strings.NewReader(event))
	}
	b := newBlocks(io.MultiReader(froms...), dialect.OpenAI, r.hold(source{mac: "mac-a"}))
	defer b.free()
	for range events {
		if got, err := b.next(); string(got) != event {
			t.Fatalf("%d bytes, %v", len(got), err)
		}
		if len(b.last) > dialect.ErrorBytes {
			t.Fatalf("%d bytes are kept", len(b.last))
		}
	}
	if _, err := b.next(); err != io.EOF || !b.ended() || b.status() != 500 {
		t.Errorf("it ends with %v and status %d", err, b.status())
	}
	note := func() { (&blocks{of: dialect.OpenAI}).note([]byte(event)) }
	if n := testing.AllocsPerRun(10, note); n > 3 { // also its copy here
		t.Errorf("an event takes %.0f allocations", n)
	}
}
