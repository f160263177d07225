package text

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/metal/chat"
)

// Roles whose turns instruct the model.
const (
	roleSystem    = "system"
	roleDeveloper = "developer"
	roleUser      = "user"
	roleAssistant = "assistant"
)

// effortVariable is the variable by which templates grade reasoning.
const effortVariable = "reasoning_effort"

// effortNone is the effort without reasoning.
const effortNone = "none"

// ranks are the efforts that clients may ask for, from least to most.
var ranks = []string{effortNone, "minimal", "low", "medium", "high", "xhigh", "max"}

// common efforts need not be spelled out in a template: one that prints the
// effort takes them.
var common = []string{"low", "medium", "high"}

// toggles are the variables by which templates switch reasoning on and off.
var toggles = []string{"enable_thinking", "thinking"}

// abilities are what a chat template does with parts of a request that not every
// template knows.
type abilities struct {
	// toggle is the one of toggles that changes what the template writes; empty
	// for none.
	toggle string
	// efforts are those of ranks that the template takes; empty where it does not
	// grade.
	efforts []string
	// systemAnywhere is set where turns of the system may follow other turns.
	systemAnywhere bool
}

// probe finds the abilities of the templates by rendering short conversations.
func (t *Text) probe(ctx context.Context) (abilities, error) {
	var a abilities
	for _, name := range toggles {
		on, okOn := t.try(ctx, fmt.Sprintf(`{%q:true}`, name), roleUser)
		off, okOff := t.try(ctx, fmt.Sprintf(`{%q:false}`, name), roleUser)
		if okOn && okOff && on != off {
			a.toggle = name
			break
		}
	}
	a.efforts = t.gradedBy(ctx)
	a.systemAnywhere = t.inOrder(ctx, roleSystem, roleUser, roleAssistant, roleSystem, roleUser) &&
		t.inOrder(ctx, roleUser, roleSystem, roleUser) && t.inOrder(ctx, roleUser, roleSystem)
	return a, ctx.Err()
}

// gradedBy returns the efforts that the template takes, if it writes different
// prompts for them. A template may print any value; the uncommon ones count only
// where it spells them out.
func (t *Text) gradedBy(ctx context.Context) []string {
	var efforts []string
	written := map[string]bool{}
	for _, effort := range ranks {
		if !slices.Contains(common, effort) && !t.templates.Says(`"`+effort+`"`) && !t.templates.Says(`'`+effort+`'`) {
			continue
		}
		if text, ok := t.try(ctx, fmt.Sprintf(`{%q:%q}`, effortVariable, effort), roleUser); ok {
			efforts = append(efforts, effort)
			written[text] = true
		}
	}
	if len(written) < 2 {
		return nil
	}
	return efforts
}

// content of a turn in a conversation that is only tried.
func content(i int) string { return fmt.Sprintf("metalfleet-turn-%d-", i) }

// try renders a conversation of turns with these roles.
func (t *Text) try(ctx context.Context, arguments string, roles ...string) (text string, ok bool) {
	var turns []chat.Message
	for i, role := range roles {
		turns = append(turns, chat.Message{Role: role, Content: content(i)})
	}
	o := t.options()
	o.Arguments = json.RawMessage(arguments)
	o.Now = time.Time{} // a template that prints the time must not seem to change
	text, err := t.templates.Render(ctx, turns, o)
	return text, err == nil
}

// inOrder reports whether a template writes each of these turns once, in order.
func (t *Text) inOrder(ctx context.Context, roles ...string) bool {
	text, ok := t.try(ctx, "", roles...)
	last := -1
	for i := range roles {
		at := strings.Index(text, content(i))
		if at <= last || strings.Count(text, content(i)) != 1 {
			return false
		}
		last = at
	}
	return ok
}

// instructs reports whether a turn instructs the model.
func instructs(m chat.Message) bool { return m.Role == roleSystem || m.Role == roleDeveloper }

// arranged returns a conversation as the template takes it. Where the template takes
// instructions only at the head, those at the head are joined, and later ones become
// part of the user's turns at their place. At the head, each new one would change the
// prompt before the whole conversation, which the prefix cache would then not have.
func (t *Text) arranged(messages []chat.Message) []chat.Message {
	head := 0
	for head < len(messages) && instructs(messages[head]) {
		head++
	}
	if t.can.systemAnywhere || head < 2 && !slices.ContainsFunc(messages[head:], instructs) {
		return messages
	}
	var out []chat.Message
	if head > 0 {
		var texts []string
		for _, m := range messages[:head] {
			texts = append(texts, m.Content)
		}
		out = append(out, chat.Message{Role: messages[0].Role, Content: strings.Join(texts, "\n\n")})
	}
	var joined []string // texts of the last turn, if it has several
	join := func() {
		if joined != nil {
			out[len(out)-1].Content, joined = strings.Join(joined, "\n\n"), nil
		}
	}
	late := false // the turn before this one is an instruction
	for _, m := range messages[head:] {
		before := late
		if late = instructs(m); late {
			m.Role = roleUser
		}
		// Such templates often demand that roles alternate, so no turn of the user may
		// follow another because of an instruction.
		if n := len(out); (late || before) && n > 0 && joinable(out[n-1], m) {
			if joined == nil {
				joined = []string{out[n-1].Content}
			}
			joined = append(joined, m.Content)
		} else {
			join()
			out = append(out, m)
		}
	}
	join()
	return out
}

// joinable reports whether two turns are of the user and nothing but text.
func joinable(a, b chat.Message) bool {
	return a.Role == roleUser && b.Role == roleUser && a.Name == b.Name && len(a.Extra)+len(b.Extra)+len(a.Parts)+len(b.Parts) == 0
}

// withEffort adds to a template's arguments how much the model is to think: the
// nearest effort that the template takes, or whether it is to think at all. What
// a client sets itself among the arguments stays as it is.
func (a abilities) withEffort(arguments json.RawMessage, effort string) (json.RawMessage, error) {
	all := map[string]view{}
	if len(arguments) > 0 {
		if json.Unmarshal(arguments, &all) != nil {
			return nil, fmt.Errorf("%w: the template arguments are not an object", chat.ErrMessages)
		}
	}
	if all == nil {
		return nil, fmt.Errorf("%w: template arguments: %w", chat.ErrMessages, errors.New("not a JSON object"))
	}
	set := func(name string, value any) error {
		if _, given := all[name]; given || name == "" {
			return nil
		}
		raw, err := json.Marshal(value)
		all[name] = raw
		return err
	}
	if err := set(a.toggle, effort != effortNone); err != nil {
		return nil, err
	}
	if nearest := a.nearest(effort); nearest != "" {
		if err := set(effortVariable, nearest); err != nil {
			return nil, err
		}
	}
	return write(sorted(values(all))), nil
}

// nearest returns the effort of the template that is nearest to the given one;
// empty for none. Of two that are equally near it is the smaller one. No
// reasoning is only chosen if the request asks for none, unless the template
// has nothing else.
func (a abilities) nearest(effort string) string {
	rank := slices.Index(ranks, effort)
	best, distance := "", len(ranks)
	for _, e := range a.efforts {
		if effort == effortNone && a.toggle != "" && e != effortNone || effort != effortNone && e == effortNone {
			continue
		}
		if d := slices.Index(ranks, e) - rank; max(d, -d) < distance {
			best, distance = e, max(d, -d)
		}
	}
	return best
}
