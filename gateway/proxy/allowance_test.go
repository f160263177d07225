package proxy

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
)

// A request can use as many tokens as its answers may have, and as its prompt may become.
func TestAllowanceOfARequest(t *testing.T) {
	const context = unknownContext
	for name, tc := range map[string]struct {
		path, body string
		want       agentapi.TokenCount
	}{
		"a prompt":       {path: dialect.PathCompletions, body: `{"model":"m","prompt":"x","max_tokens":5}`, want: agentapi.TokenCount{Prompt: 1, Generated: 5}},
		"no limit":       {path: dialect.PathCompletions, body: `{"model":"m","prompt":[1,2]}`, want: agentapi.TokenCount{Prompt: 1, Generated: context}},
		"many answers":   {path: dialect.PathCompletions, body: `{"model":"m","prompt":["x","y"],"n":3,"max_tokens":5}`, want: agentapi.TokenCount{Prompt: 6, Generated: 30}},
		"stored items":   {path: dialect.PathResponses, body: `{"model":"m","input":"x","previous_response_id":"r","max_output_tokens":5}`, want: agentapi.TokenCount{Prompt: -1, Generated: 5}},
		"texts to embed": {path: dialect.PathEmbeddings, body: `{"model":"m","input":["x","y"]}`, want: agentapi.TokenCount{Prompt: 2}},
		"documents":      {path: dialect.PathRerank, body: `{"model":"m","query":"q","documents":["x","y","z"]}`, want: agentapi.TokenCount{Prompt: 3}},
		"pairs":          {path: dialect.PathScore, body: `{"model":"m","text_1":"q","text_2":["x","y"],"documents":["z"]}`, want: agentapi.TokenCount{Prompt: 3}},

		// The agent ignores members of other routes.
		"the limit of responses in a chat":   {path: dialect.PathChat, body: `{"model":"m","messages":[],"max_output_tokens":1}`, want: agentapi.TokenCount{Prompt: 1, Generated: context}},
		"that of chats in a completion":      {path: dialect.PathCompletions, body: `{"model":"m","prompt":"x","max_completion_tokens":1}`, want: agentapi.TokenCount{Prompt: 1, Generated: context}},
		"that of chats in a response":        {path: dialect.PathResponses, body: `{"model":"m","input":"x","max_tokens":1}`, want: agentapi.TokenCount{Prompt: 1, Generated: context}},
		"prompts in a chat":                  {path: dialect.PathChat, body: `{"model":"m","messages":[],"prompt":["x","y"],"max_tokens":5}`, want: agentapi.TokenCount{Prompt: 1, Generated: 5}},
		"an earlier response in a chat":      {path: dialect.PathChat, body: `{"model":"m","messages":[],"previous_response_id":"r","max_tokens":5}`, want: agentapi.TokenCount{Prompt: 1, Generated: 5}},
		"a stored item without a type":       {path: dialect.PathResponses, body: `{"model":"m","input":[{"id":"i"}],"max_output_tokens":5}`, want: agentapi.TokenCount{Prompt: -1, Generated: 5}},
		"a stored item with an escaped type": {path: dialect.PathResponses, body: `{"model":"m","input":[{"i\u0064":"i","type":"item\u005freference"}],"max_output_tokens":5}`, want: agentapi.TokenCount{Prompt: -1, Generated: 5}},
		"an item that is sent with its id":   {path: dialect.PathResponses, body: `{"model":"m","input":[{"id":"i","role":"user","content":"x"}],"max_output_tokens":5}`, want: agentapi.TokenCount{Prompt: 1, Generated: 5}},
		"a call that is sent with its id":    {path: dialect.PathResponses, body: `{"model":"m","input":[{"id":"i","type":"function_call"}],"max_output_tokens":5}`, want: agentapi.TokenCount{Prompt: 1, Generated: 5}},
	} {
		t.Run(name, func(t *testing.T) {
			e, err := outlineOf(tc.path, []byte(tc.body), "", false)
			if err != nil {
				t.Fatal(err)
			}
			want := tc.want
			if want.Prompt *= int64(tokensPerByte*len(tc.body) + templateTokens); want.Prompt < 0 {
				want.Prompt = context
			}
			if got := allowanceOf(tc.path, e, []byte(tc.body), nil); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

// Images at URLs are a few bytes each. A tenant that sends many is charged for their tokens
// all the same.
func TestAttackTokensOfImagesAreCharged(t *testing.T) {
	const images = 16
	for path, tc := range map[string]struct{ before, image, after string }{
		dialect.PathChat:      {`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"image"},`, `{"type":"image_url","image_url":{"url":"https://h/a"}}`, `]}]}`},
		dialect.PathResponses: {`{"model":"m","input":[{"role":"user","content":[`, `{"image_url":"https://h/a","type":"\u0069nput_image"}`, `]}]}`},
		dialect.PathMessages:  {`{"model":"m","messages":[{"content":[`, `{"type":"image","source":{"type":"url","url":"https://h/a"}}`, `],"role":"user"}],"input":[{}]}`},
	} {
		body := tc.before + strings.TrimSuffix(strings.Repeat(tc.image+",", images), ",") + tc.after
		e, err := outlineOf(path, []byte(body), "", false)
		if err != nil {
			t.Fatal(err)
		}
		used := agentapi.TokenCount{Prompt: images * imageTokens, Generated: 5}
		if got := atMost(used, allowanceOf(path, e, []byte(body), nil)); got != used {
			t.Errorf("%s: %d of %d tokens are charged", path, got.Prompt, used.Prompt)
		}
		if most := allowanceOf(path, e, []byte(body), nil).Prompt; most > images*imageTokens+tokensPerByte*int64(len(body))+templateTokens {
			t.Errorf("%s: a Mac may charge %d tokens", path, most)
		}
	}
}

// What is read with each text counts for each.
func TestAQueryCountsForEachDocument(t *testing.T) {
	long := strings.Repeat("q", 998) // 1,000 bytes with quotes
	for name, tc := range map[string]struct {
		path, body string
		times      int
	}{
		"a query":          {dialect.PathRerank, `{"model":"m","query":"` + long + `","documents":["a","b","c"]}`, 3},
		"of version 2":     {dialect.PathRerankV2, `{"model":"m","query":"` + long + `","documents":["a","b"]}`, 2},
		"with texts":       {dialect.PathRerank, `{"model":"m","query":"` + long + `","texts":["a","b","c"]}`, 3},
		"an instruction":   {dialect.PathRerank, `{"model":"m","instruction":"` + long + `","documents":["a","b","c"]}`, 3},
		"one text":         {dialect.PathScore, `{"model":"m","text_1":"` + long + `","text_2":["a","b","c"]}`, 3},
		"in a list":        {dialect.PathScore, `{"model":"m","queries":["` + long[2:] + `"],"documents":["a","b","c"]}`, 3},
		"pairs":            {dialect.PathScore, `{"model":"m","text_1":["` + long + `","r"],"text_2":["a","b"]}`, 1},
		"before texts":     {dialect.PathEmbeddings, `{"model":"m","instruction":"` + long + `","input":["a","b","c"]}`, 3},
		"before one text":  {dialect.PathEmbeddings, `{"model":"m","instruction":"` + long + `","input":"a"}`, 1},
		"not of the route": {dialect.PathEmbeddings, `{"model":"m","query":"` + long + `","input":["a","b","c"]}`, 1},
	} {
		e, err := outlineOf(tc.path, []byte(tc.body), "", false)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := estimateOf(e, []byte(tc.body)), 1+int64(len(tc.body)+1000*(tc.times-1))/bytesPerToken; got != want {
			t.Errorf("%s: %d tokens, want %d", name, got, want)
		}
	}
}

// TestWhatIsSeenOfARequest: an honest Mac's count is seen as a whole, also of images at URLs and of
// thoughts that are not sent; no Mac generates what it had no time for.
func TestWhatIsSeenOfARequest(t *testing.T) {
	const image = `{"type":"image_url","image_url":{"url":"https://h/a"}}`
	chat := func(content, more string) string {
		return `{"model":"m","messages":[{"role":"user","content":` + content + `}]` + more + `}`
	}
	for name, tc := range map[string]struct {
		path, body      string
		took            time.Duration
		honest, invents int64 // tokens
	}{
		"a short prompt":         {body: chat(`"hi"`, ""), took: 2 * time.Second, honest: 60 + 200, invents: 2000},
		"long thoughts":          {body: chat(`"hi"`, ""), took: time.Minute, honest: 60 + 6000, invents: 10_000},
		"a short answer":         {body: chat(`"hi"`, `,"max_tokens":5`), took: time.Minute, honest: 60 + 5, invents: 500},
		"many answers":           {body: chat(`"hi"`, `,"n":8`), took: 10 * time.Second, honest: 60 + 8*1000, invents: 20_000},
		"digits":                 {body: chat(`"`+strings.Repeat("1", 10_000)+`"`, ""), honest: 10_000, invents: 12_000},
		"images at URLs":         {body: chat("["+strings.Repeat(image+",", 15)+image+"]", ""), honest: 16 * imageTokens, invents: 17*imageTokens + 1000},
		"the bytes of an image":  {body: chat(`[{"type":"image_url","image_url":{"url":"data:`+strings.Repeat("A", 1<<20)+`"}}]`, ""), honest: imageTokens, invents: 2 * imageTokens},
		"a query with documents": {path: dialect.PathRerank, body: `{"model":"m","query":"` + strings.Repeat("q", 1000) + `","documents":["a","b","c"]}`, honest: 3000, invents: 3500},
		"an earlier response":    {path: dialect.PathResponses, body: `{"model":"m","input":"x","previous_response_id":"r"}`, honest: 100, invents: 600},
	} {
		path := cmp.Or(tc.path, dialect.PathChat)
		e, err := outlineOf(path, []byte(tc.body), "", false)
		if err != nil {
			t.Fatal(err)
		}
		if n := seenOf(e, []byte(tc.body), allowanceOf(path, e, []byte(tc.body), nil)).after(tc.took); n < tc.honest || n >= tc.invents {
			t.Errorf("%s: %d tokens are seen, want %d to %d", name, n, tc.honest, tc.invents)
		}
	}
}
