package proxy

import (
	"bytes"
	"iter"
	"strconv"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/api/anthropic"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/responses"
)

// keepAlives makes the events that keep one stream open until its response begins: clients
// count them as activity, and they add nothing to the response. Comments are not enough:
// some clients have a timeout between parsed events.
//
// A stream of the Responses API has to begin with its own events, because clients reject
// others before them. So the gateway chooses the response id, the agent uses the same, and
// the agent's events are renumbered to follow those already sent.
type keepAlives struct {
	path, model string
	// body of a request of the Responses API, until the answer is made or refused.
	body    []byte
	created int64
	// hold counts memory against the share of the caller.
	hold func(bytes int64) (intake.Kept, error)
	kept intake.Kept // of the answer
	// turn waits for a turn to decode the settings, which end ends.
	turn func() (end func(), err error)
	// home is the only Mac that the request may be sent to; empty for any.
	home string
	// id of the response; empty while unknown, and for APIs without one.
	id string
	// anywhere made the id if it names no Mac.
	anywhere *responses.Anywhere
	// opened counts the events that the client has received, up to the first output item.
	opened int
	// answered is set once the response has begun.
	answered bool
	// answer is the response object as the gateway sent it.
	answer *responses.Answer
}

// The settings of a request, decoded and in the events that are being written, take at most
// heldPerByte for each of their bytes (short tools; measured: 24) and heldLeast besides.
const heldPerByte, heldLeast = 32, 4 << 10

// newKeepAlives returns nil for a route that has no streams.
func newKeepAlives(path, model string, body []byte, hold func(int64) (intake.Kept, error), turn func() (end func(), err error)) *keepAlives {
	k := &keepAlives{path: path, model: model, hold: hold, turn: turn, created: time.Now().Unix()}
	switch path {
	case dialect.PathResponses:
		k.body = body
	case dialect.PathChat, dialect.PathCompletions, dialect.PathMessages:
	default:
		return nil
	}
	return k
}

// place chooses the response id for an attempt at a Mac, unless the client has received one
// already.
func (k *keepAlives) place(mac string) string {
	switch {
	case k == nil:
		return ""
	case k.path == dialect.PathChat && k.id == "":
		k.id = openai.NewID(openai.ChatIDPrefix)
	case k.path == dialect.PathCompletions && k.id == "":
		k.id = openai.NewID(openai.CompletionIDPrefix)
	case k.path == dialect.PathResponses && k.opened == 0:
		k.id, k.anywhere = responses.NewID(mac), nil
	}
	return k.id
}

// proof returns what lets the next Mac prove that it was sent the request; empty if the id names
// a Mac.
func (k *keepAlives) proof() string {
	if k.anywhere == nil {
		return ""
	}
	return k.anywhere.Proof()
}

// displace drops a Mac that did not respond: the id of a response must not name it. If the
// client has that id already, the response cannot be retrieved later, as after a restart of
// the Mac that stores it.
func (k *keepAlives) displace() {
	if k != nil && k.path == dialect.PathResponses && k.opened == 0 {
		k.id = ""
	}
}

// forget drops what is not needed after the response has begun, or ended.
func (k *keepAlives) forget() {
	if k == nil {
		return
	}
	k.body, k.answer = nil, nil
	k.kept.Release()
}

// leaveBody drops the body, which is not counted from then on, and keeps what failed needs.
func (k *keepAlives) leaveBody() {
	if k == nil {
		return
	}
	if k.path == dialect.PathResponses && k.opened > 0 && !k.answered {
		k.begin()
	}
	k.body = nil
}

// next returns the next event, or the end of a comment if the API has no event that clients
// accept here.
func (k *keepAlives) next() (string, error) {
	switch k.path {
	case dialect.PathMessages:
		return k.events(anthropic.Ping(nil))
	case dialect.PathResponses:
		return k.nextOfResponse()
	}
	k.place("")
	var chunk any = openai.ChatAnswer{ID: k.id, Created: k.created, Model: k.model}.KeepAlive(nil)
	if k.path == dialect.PathCompletions {
		chunk = openai.CompletionAnswer{ID: k.id, Created: k.created, Model: k.model}.KeepAlive(nil)
	}
	data, err := openai.Marshal(chunk)
	return "data: " + string(data) + "\n\n", err
}

func (k *keepAlives) nextOfResponse() (string, error) {
	if !k.begin() {
		return "\n", nil
	}
	k.answer.Follow(k.opened)
	if k.opened == 0 {
		return k.events(k.answer.Opening())
	}
	return k.events(k.answer.KeepAlive(nil))
}

// begin makes the response object from the request. It returns false while there is no memory
// for it, once the client has gone, and for a request that it cannot represent, in most cases
// because an agent will refuse it.
func (k *keepAlives) begin() bool {
	if k.answer != nil {
		k.answer.Response.Model = k.model
		return true
	}
	if k.body == nil {
		return false
	}
	end, err := k.turn()
	if err != nil {
		return false
	}
	defer end()
	crowded := false
	r, err := responses.DecodeSettings(k.body, func(bytes int) (err error) {
		k.kept, err = k.hold(heldLeast + heldPerByte*int64(bytes))
		crowded = err != nil
		return err
	})
	if crowded {
		return false
	}
	k.body = nil // which is not decoded again, also if it was refused
	if err != nil {
		k.forget()
		return false
	}
	switch {
	case k.id == "" && k.home != "":
		k.id = responses.NewID(k.home)
	case k.id == "":
		k.anywhere = responses.NewAnywhere()
		k.id = k.anywhere.ID()
	}
	k.answer = responses.NewAnswer(k.id, k.created, r)
	k.answer.Response.Model = k.model
	return true
}

// events encodes and counts named events.
func (k *keepAlives) events(all []openai.NamedEvent) (string, error) {
	var out strings.Builder
	for _, e := range all {
		data, err := openai.Marshal(e.Data)
		if err != nil {
			return "", err
		}
		out.WriteString("event: " + e.Name + "\ndata: " + string(data) + "\n\n")
		k.opened++
	}
	return out.String(), nil
}

// failed returns the event that ends a response before its first item; empty if the API's
// regular error does.
func (k *keepAlives) failed(e *openai.Error) (string, error) {
	if k == nil || k.path != dialect.PathResponses || k.opened == 0 || k.answered || !k.begin() {
		return "", nil
	}
	k.answer.Follow(k.opened)
	return k.events(k.answer.Fail(responses.StatusFailed, e))
}

// beginsWith reports whether the response begins with a block of an agent's stream, and
// records what the agent sends before that.
func (k *keepAlives) beginsWith(block []byte, d *dialect.Dialect) bool {
	idle := d.Idle(block)
	switch {
	case k == nil:
	case !idle:
		k.answered = true
	case k.path == dialect.PathResponses:
		k.opened += bytes.Count(block, dataLine)
	}
	return !idle
}

// dataLine begins the data of an event after another line.
var dataLine = []byte("\ndata: ")

// follower returns a function that yields an agent's events in parts, renumbered to follow those
// already sent; nil if there are none. The parts are those of the block: an event may take megabytes
// until its client has read it.
func (k *keepAlives) follower() func(block []byte) iter.Seq[[]byte] {
	if k == nil || k.path != dialect.PathResponses || k.opened == 0 {
		return nil
	}
	shift := k.opened - 1 // the agent's first event is dropped
	return func(block []byte) iter.Seq[[]byte] {
		return func(yield func([]byte) bool) {
			for rest := block; len(rest) > 0; {
				end := bytes.Index(rest, []byte("\n\n")) + 2
				event := rest[:end]
				rest = rest[end:]
				if bytes.HasPrefix(event, []byte("event: response.created\n")) {
					continue
				}
				before, number, after := renumbered(event, shift)
				if !yield(before) || !yield(number) || !yield(after) {
					return
				}
			}
		}
	}
}

var sequenceMember = []byte(`"sequence_number":`)

// renumbered adds to the sequence number of an event, which is among the first members of
// its data. It returns what is before and after it.
func renumbered(event []byte, shift int) (before, number, after []byte) {
	at := bytes.Index(event, sequenceMember)
	if at < 0 {
		return event, nil, nil
	}
	at += len(sequenceMember)
	end := at
	for end < len(event) && event[end] >= '0' && event[end] <= '9' {
		end++
	}
	n, err := strconv.Atoi(string(event[at:end]))
	if err != nil {
		return event, nil, nil
	}
	return event[:at], strconv.AppendInt(nil, int64(n+shift), 10), event[end:]
}
