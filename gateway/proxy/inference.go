package proxy

import (
	"context"
	"net/http"
	"net/url"
	"strings"

	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/gateway/dispatch"
	"metalfleet.dev/metalfleet/gateway/route"
)

// inference serves requests that name a model, by forwarding them to its replicas.
type inference struct {
	gate       *gate
	limits     *limits
	table      *route.Table
	stored     *stored
	background *background
	forwarder  *forwarder
	// strict makes agents reject fields that have no effect, regardless of the key.
	strict bool
	// keepAttribution makes agents keep the attribution block.
	keepAttribution bool
}

// serve reads the body of a request and forwards it, while the client waits or in the
// background.
func (i *inference) serve(ctx context.Context, c caller, w *reply, r *http.Request) error {
	body, kept, err := i.limits.readBody(c, w, r)
	if err != nil {
		return err
	}
	read, err := i.outline(ctx, c, r.URL.Path, body)
	if err != nil {
		kept.Release()
		return err
	}
	answer := func(ctx context.Context, w *reply, r *http.Request) error {
		defer kept.Release()
		mine, sent := read, body
		read, body = outline{}, nil // this function may be kept for as long as the response runs
		if mine.Stream {
			w.keepAlives = i.keepAlives(ctx, c, r.URL.Path, mine.Model, sent)
			defer w.keepAlives.leaveBody()
		}
		return i.forward(ctx, c, w, r, mine, newContent(sent, kept, w.keepAlives == nil || w.keepAlives.body == nil))
	}
	if !runsInBackground(read.Envelope, r) {
		return answer(ctx, w, r)
	}
	end, err := i.background.begin(c)
	if err != nil {
		kept.Release()
		return err
	}
	outliving, stream := withoutClient(ctx, r), read.Stream
	return i.background.detach(ctx, c.share(), w, stream, func(ctx context.Context, w *reply) error {
		defer end()
		return answer(ctx, w, outliving)
	})
}

// keepAlives returns those of a stream of the caller. Hundreds of streams that wait may need their settings
// at the same moment: these are decoded in turns, as bodies are.
func (i *inference) keepAlives(ctx context.Context, c caller, path, model string, body []byte) *keepAlives {
	bytes := min(len(body), mediumBody) // a longer input is not decoded
	return newKeepAlives(path, model, body, func(n int64) (intake.Kept, error) { return i.limits.bodies.Hold(c.share(), n) },
		func() (func(), error) { return i.limits.decoding.begin(ctx, c.share(), bytes) })
}

// withoutClient returns a request that runs without its client. It has only the headers that are read
// of it: the others count for as long as the client is there. Parts are
// copied: each would keep the whole line that it was read from.
func withoutClient(ctx context.Context, r *http.Request) *http.Request {
	out := &http.Request{Method: strings.Clone(r.Method), URL: &url.URL{Path: strings.Clone(r.URL.Path)}, Header: http.Header{}, RemoteAddr: r.RemoteAddr}
	for _, name := range append([]string{agentapi.HeaderTimeout}, sentHeaders...) {
		if value := r.Header.Get(name); value != "" {
			out.Header.Set(name, strings.Clone(value[:min(len(value), maxValue)]))
		}
	}
	return out.WithContext(context.WithoutCancel(ctx))
}

// membersOf are the members of a body that the agent reads on a route, as far as the gateway
// needs them. The agent ignores the others: a client could use one to have its request count as
// less than it is.
var membersOf = map[string][]string{
	dialect.PathChat:        {"messages", "tools", "n", "max_tokens", "max_completion_tokens"},
	dialect.PathCompletions: {"prompt", "n", "max_tokens"},
	dialect.PathMessages:    {"messages", "system", "tools", "max_tokens"},
	dialect.PathCountTokens: {"messages", "system", "tools"},
	dialect.PathResponses:   {"input", "instructions", "tools", "previous_response_id", "background", "max_output_tokens"},
	dialect.PathInputTokens: {"input", "instructions", "tools", "previous_response_id", "background", "max_output_tokens"},
	dialect.PathEmbeddings:  {"input", "instruction"},
	dialect.PathRerank:      {"query", "documents", "texts", "instruction"},
	dialect.PathRerankV2:    {"query", "documents", "instruction"},
	dialect.PathScore:       {"text_1", "queries", "text_2", "documents", "instruction"},
}

// envelopeOf decodes the envelope of a request.
func envelopeOf(path string, body []byte) (openai.Envelope, error) {
	return openai.DecodeEnvelope(body, membersOf[path]...)
}

func runsInBackground(e openai.Envelope, r *http.Request) bool {
	return e.Background && r.URL.Path == dialect.PathResponses
}

// forward forwards a request whose body was read to a replica of its model.
func (i *inference) forward(ctx context.Context, c caller, w *reply, r *http.Request, read outline, body *content) error {
	name := read.Model // which readmit keeps, and nothing that is a part of the body
	named, err := i.gate.lookup(ctx, c, name)
	if err != nil {
		return err
	}
	w.deployment = named.Model.Key.String()
	c.setPriority(r.Header)
	if w.meter, err = i.gate.meter(ctx, c, w, read, body.bytes()); err != nil {
		return err
	}
	ctx, cancel, deadline, err := i.limits.bound(ctx, r)
	if err != nil {
		return err
	}
	defer cancel()
	req := &request{client: r, readmit: func() error { return i.gate.readmit(ctx, c, w, name, named.Model) }, body: body, strict: i.strict || c.strict(), attribution: i.keepAttribution, background: runsInBackground(read.Envelope, r),
		Request: dispatch.Request{Name: name, Adapter: named.Adapter, Key: c.name(), Owner: c.share(), Sequences: min(read.Choices, agentapi.ChoicesAtOnce), Prefix: withAdapter(read.prefix, named.Adapter), Bytes: int64(len(body.bytes())),
			Deadline: deadline, Client: w, Log: scopeOf(ctx).log}}
	req.Route(i.table, named.Model)
	if req.background && c.key == nil {
		end, err := i.background.beginAt(req.Candidates[0])
		if err != nil {
			return err
		}
		defer end()
		req.Owner += " in the background" // takes turns with what clients of the address wait for
	}
	most := allowanceOf(r.URL.Path, read, body.bytes(), req.Candidates)
	w.allow(most, seenOf(read, body.bytes(), most))
	if req.OnlyMac, req.Candidates, err = i.stored.storedAt(ctx, c, read.Envelope, req.Candidates); err != nil {
		return err
	}
	if err := i.gate.avoid(ctx, c, &req.Request); err != nil {
		return err
	}
	if w.keepAlives != nil {
		w.keepAlives.home = req.OnlyMac
	}
	return i.forwarder.forward(ctx, w, req)
}
