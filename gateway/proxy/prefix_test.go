package proxy

import (
	"runtime"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/pick"
)

func prefixIn(t *testing.T, members string) pick.Prefix {
	t.Helper()
	e, err := openai.DecodeEnvelope([]byte(`{"model":"m",` + members + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return prefixOf(e)
}

func TestPrefixOfPrompts(t *testing.T) {
	const system, one = `{"role":"system","content":"be kind"}`, `{"role":"user","content":"one"}`
	first := prefixIn(t, `"messages":[`+system+`,`+one+`]`)
	for what, c := range map[string]struct {
		members     string
		shared, own bool // the same as first's
	}{
		"the next turn":         {members: `"messages": [ ` + system + ` , ` + one + `,{"role":"assistant","content":"1"},{"role":"user","content":"two"}]`, shared: true, own: true},
		"another parameter":     {members: `"temperature":0.5,"messages":[` + system + `,` + one + `]`, shared: true, own: true},
		"another conversation":  {members: `"messages":[` + system + `,{"role":"user","content":"two"}]`, shared: true},
		"another system prompt": {members: `"messages":[{"role":"system","content":"be brief"},` + one + `]`},
		"a second one":          {members: `"messages":[` + system + `,{"role":"developer","content":"x"},` + one + `]`},
		"tools":                 {members: `"tools":[{}],"messages":[` + system + `,` + one + `]`},
		"no system prompt":      {members: `"messages":[` + one + `]`},
	} {
		p := prefixIn(t, c.members)
		if p.Shared == 0 || p.Own == 0 || (p.Shared == first.Shared) != c.shared || (p.Own == first.Own) != c.own {
			t.Errorf("%s: %+v and %+v", what, p, first)
		}
	}
	for _, none := range []string{`"messages":[]`, `"messages":"x"`, `"input":"x"`} {
		if p := prefixIn(t, none); p != (pick.Prefix{}) {
			t.Errorf("%s begins with %+v", none, p)
		}
	}
	long, other := strings.Repeat("x", 1000), strings.Repeat("y", 2000)
	a, b := prefixIn(t, `"prompt":"`+long+other+`"`), prefixIn(t, `"prompt":"`+long+long+long+`"`)
	if a.Shared != b.Shared || a.Own == b.Own || a.Own == 0 {
		t.Errorf("two texts with one beginning: %+v and %+v", a, b)
	}
	if p := prefixIn(t, `"prompt":"short"`); p.Shared == 0 || p.Own != 0 {
		t.Errorf("a short text: %+v", p)
	}
}

// Anthropic's and Responses requests have the system prompt outside the messages; embedding
// inputs are no conversation.
func TestPrefixOfPromptsOfOtherAPIs(t *testing.T) {
	const one, two = `{"role":"user","content":"one"}`, `{"role":"user","content":"two"}`
	for name, c := range map[string]struct{ first, turn, other, system string }{
		"messages":  {first: `"system":"s","messages":[` + one + `]`, turn: `"system":"s","messages":[` + one + `,` + two + `]`, other: `"system":"s","messages":[` + two + `]`, system: `"system":"t","messages":[` + one + `]`},
		"responses": {first: `"instructions":"s","input":[` + one + `]`, turn: `"instructions":"s","input":[` + one + `,` + two + `]`, other: `"instructions":"s","input":[` + two + `]`, system: `"instructions":"t","input":[` + one + `]`},
	} {
		first, turn, other, system := prefixIn(t, c.first), prefixIn(t, c.turn), prefixIn(t, c.other), prefixIn(t, c.system)
		if first.Shared == 0 || turn != first || other.Shared != first.Shared || other.Own == first.Own || system.Shared == first.Shared || system.Own == first.Own {
			t.Errorf("%s: %+v, the next turn %+v, another conversation %+v, another system prompt %+v", name, first, turn, other, system)
		}
	}
	for _, none := range []string{`"input":["a","b"]`, `"input":[1,2]`, `"input":[[1],[2]]`, `"input":[]`} {
		if p := prefixIn(t, none); p != (pick.Prefix{}) {
			t.Errorf("%s begins with %+v", none, p)
		}
	}
}

// Claude Code begins each session's system prompt with a different block.
func TestTheAttributionBlockIsNoPartOfThePrefix(t *testing.T) {
	block := func(cch string) string { return `x-anthropic-billing-header: cc_version=2.1.120.cf9; cch=` + cch + `;` }
	const one = `"messages":[{"role":"user","content":"one"}]`
	blocks := func(cch string) string {
		return `"system": [ {"type":"text","text":"` + block(cch) + `"} , {"type":"text","text":"You are","cache_control":{"type":"ephemeral"}}],` + one
	}
	text := func(cch string) string { return `"system":"` + block(cch) + `\nYou are",` + one }
	const keep, drop = true, false
	of := func(keepAttribution bool, members string) pick.Prefix {
		e, err := openai.DecodeEnvelope([]byte(`{"model":"m",` + members + `}`))
		if err != nil {
			t.Fatal(err)
		}
		return prefixFor(e, "", keepAttribution)
	}
	for name, members := range map[string]func(string) string{"blocks": blocks, "one text": text} {
		if a, b := of(drop, members("a1")), of(drop, members("b2")); a != b || a.Shared == 0 {
			t.Errorf("%s: two sessions begin with %+v and %+v", name, a, b)
		}
		if a, b := of(keep, members("a1")), of(keep, members("b2")); a.Shared == b.Shared {
			t.Errorf("%s: two sessions with a block that is kept begin with %+v", name, a)
		}
	}
	if a, b := of(drop, blocks("a")), of(drop, `"system":[{"type":"text","text":"You are someone else"}],`+one); a.Shared == b.Shared {
		t.Errorf("other system prompts: %+v", a)
	}
	for _, odd := range []string{`[[["x-anthropic-billing-header:"]]]`, `[{"text":["x-anthropic-billing-header:"]}]`, `{"text":"x-anthropic-billing-header:"}`, `[{"text":"a x-anthropic-billing-header:"}]`, `["x-anthropic-billing-header:",1]`} {
		if p := of(drop, `"system":`+odd+`,`+one); p.Shared == 0 {
			t.Errorf("%s: %+v", odd, p)
		}
	}
}

func TestACacheKeyNamesTheConversation(t *testing.T) {
	const system, one, two = `{"role":"system","content":"s"}`, `{"role":"user","content":"one"}`, `{"role":"user","content":"two"}`
	key := func(k string) string { return `"prompt_cache_key":"` + k + `",` }
	first := prefixIn(t, key("a")+`"messages":[`+system+`,`+one+`]`)
	summarized, other := prefixIn(t, key("a")+`"messages":[`+system+`,`+two+`]`), prefixIn(t, key("b")+`"messages":[`+system+`,`+one+`]`)
	if summarized != first || other.Shared != first.Shared || other.Own == first.Own {
		t.Errorf("%+v, with another first message %+v, with another key %+v", first, summarized, other)
	}
	if without := prefixIn(t, `"messages":[`+system+`,`+one+`]`); without.Shared != first.Shared || without.Own == first.Own {
		t.Errorf("%+v, without a key %+v", first, without)
	}
	text := prefixIn(t, key("a")+`"input":"hi"`)
	if text.Shared == 0 || text.Own != first.Own {
		t.Errorf("an input that is one text: %+v", text)
	}
	for _, none := range []string{`"prompt_cache_key":"",`, `"prompt_cache_key":null,`, `"prompt_cache_key":5,`} {
		if p := prefixIn(t, none+`"input":"hi"`); p != (pick.Prefix{}) {
			t.Errorf("%s: %+v", none, p)
		}
	}
}

// A tenant that guesses another one's prompt is not sent to the Mac that has it cached.
func TestAffinityIsSaltedLikeTheCache(t *testing.T) {
	const prompt = `"messages":[{"role":"system","content":"s"},{"role":"user","content":"one"}]`
	of := func(tenant, members string) pick.Prefix {
		e, err := openai.DecodeEnvelope([]byte(`{"model":"m",` + members + `}`))
		if err != nil {
			t.Fatal(err)
		}
		return prefixFor(e, tenant, false)
	}
	seen := map[uint64]string{}
	for name, p := range map[string]pick.Prefix{
		"adapter one": withAdapter(of("", prompt), "one"), "adapter two": withAdapter(of("", prompt), "two"), "tenant a with adapter one": withAdapter(of("tenant/a", prompt), "one"),
		"no tenant": of("", prompt), "tenant a": of("tenant/a", prompt), "tenant b": of("tenant/b", prompt),
		"tenant a with a salt": of("tenant/a", `"cache_salt":"s",`+prompt), "no tenant with a salt": of("", `"cache_salt":"s",`+prompt),
	} {
		for _, h := range []uint64{p.Shared, p.Own} {
			if other, ok := seen[h]; ok || h == 0 {
				t.Errorf("%s: %d is that of %q", name, h, other)
			}
			seen[h] = name
		}
	}
	if a, b := of("tenant/a", prompt), of("tenant/a", prompt); a != b {
		t.Errorf("one tenant begins with %+v and %+v", a, b)
	}
	if p := of("tenant/a", prompt); withAdapter(p, "") != p {
		t.Errorf("without an adapter %+v becomes %+v", p, withAdapter(p, ""))
	}
	if p := withAdapter(of("tenant/a", `"input":"hi"`), "one"); p != (pick.Prefix{}) {
		t.Errorf("without a prefix: %+v", p)
	}
}

// A hash without a secret can be inverted: by this salt, a prompt of one tenant had the hash of
// another tenant's, and the choice of the Mac showed that the other had sent it. The salt was
// computed from the inverse of XXH64.
func TestNoSaltGivesAPromptTheHashOfAnotherTenant(t *testing.T) {
	const salt, prompt = "00000000000000000000000000000000004101}%NelwWF", `,"messages":[{"role":"user","content":"one"}]`
	own := func(tenant, members string) pick.Prefix {
		e, err := openai.DecodeEnvelope([]byte(`{"model":"m"` + members + `}`))
		if err != nil {
			t.Fatal(err)
		}
		return prefixFor(e, tenant, false)
	}
	if blue, red := own("tenant/blue", prompt), own("tenant/red", prompt+`,"cache_salt":"`+salt+`"`); blue.Shared == red.Shared {
		t.Errorf("the prompts of two tenants have the hash %#x", red.Shared)
	}
}

// TestAttackAPrefixOfManyMessages: the prefix of a request takes no copy of its body,
// whose memory alone counts.
func TestAttackAPrefixOfManyMessages(t *testing.T) {
	body := `{"model":"m","tools":[` + strings.Repeat(" ", 8<<20) + `],"messages":[` + strings.Repeat(`{"role":"system"},`, 10_000) + `{}]}`
	e, err := openai.DecodeEnvelope([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p := prefixOf(e)
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > 2<<20 || p.Shared == 0 || p.Own == 0 {
		t.Errorf("the prefix %+v of a body of %d bytes took %d more", p, len(body), n)
	}
}
