package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/agent/serve/internal/admission"
	"metalfleet.dev/metalfleet/agent/serve/internal/heaplimit"
	"metalfleet.dev/metalfleet/agent/serve/internal/responsecache"
	"metalfleet.dev/metalfleet/agent/serve/internal/unread"
	"metalfleet.dev/metalfleet/api/agentapi"
	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/intake"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/metal/share"
	"metalfleet.dev/metalfleet/metal/wire"
)

const (
	pathChat        = dialect.PathChat
	pathCompletions = dialect.PathCompletions
)

// weightsRate is how many bytes per second a peer has to read of weights: it has one of
// few slots.
const weightsRate = 1 << 20

// errCancelled is the cause of cancellation if the client cancels a response by
// its id.
var errCancelled = errors.New("response was cancelled")

type handler struct {
	Config
	cache  *responsecache.Cache
	bodies *intake.Bodies
	// staying has half of their memory, for requests with further choices.
	staying *share.Bytes
	// answers counts what is in memory of answers until clients have read them.
	answers *unread.Room
	// heap refuses requests while the process has too much memory.
	heap *heaplimit.Limit
	// decoding has the places to decode large bodies, and decodingMedium those for bodies of
	// usual sizes: a part of the processors serves others.
	decoding, decodingMedium *share.Turns
}

// NewHandler returns the handler of the agent's port; Serve adds TLS.
func NewHandler(c Config) http.Handler {
	c = c.withDefaults()
	cache := &responsecache.Cache{Bytes: c.ResponsesBytes, Age: c.ResponsesAge}
	return &handler{
		Config: c, cache: cache, heap: &heaplimit.Limit{Bytes: c.HeapBytes, Relieve: cache.Halve},
		bodies: &intake.Bodies{Max: c.BodiesBytes}, staying: share.NewBytes(c.BodiesBytes / 2), answers: &unread.Room{Max: c.AnswersBytes},
		decoding: share.NewTurns(max(1, runtime.GOMAXPROCS(0)/2)), decodingMedium: share.NewTurns(max(1, runtime.GOMAXPROCS(0)/4)),
	}
}

// ServeHTTP serves one request and writes exactly one response.
func (h *handler) ServeHTTP(plain http.ResponseWriter, r *http.Request) {
	if _, mac := agentapi.OverWeights(r); mac {
		h.weights(plain, r)
		return
	}
	r = dialect.CanonicalRequest(r)
	w := front.NewWriter(plain, r.ProtoMajor, h.WriteTimeout)
	w.RelayRate = intake.ReadRate
	w.Informs = r.Header.Get(agentapi.HeaderInforms) == "true"
	id := front.RequestID(w.Header(), r.Header, dialect.Of(r.URL.Path) == dialect.Anthropic)
	w.Header().Set(agentapi.HeaderMac, h.Mac)
	if !h.Trusts(r.TLS) {
		// In HTTP/2 too: running requests finish, and the client opens another
		// connection.
		w.Header().Set("Connection", "close")
	}
	log := h.Log.WithValues("requestID", id, "path", r.URL.Path)
	r, end := h.trace(w, r)
	defer end()
	err := h.route(w, r, id)
	switch {
	case err == nil:
		return
	case errors.Is(err, front.ErrClientGone):
		log.V(1).Info("client disconnected before its response ended")
		return
	}
	e, retryable := refused(err)
	if e.Cause != nil && !retryable && e.Code != openai.CodeOverloaded && e.Status >= http.StatusInternalServerError {
		log.Info("request failed", "status", e.Status, "reason", e.Error())
	}
	if retryable {
		w.Header().Set(agentapi.HeaderRetryable, "true")
	}
	if err := dialect.Of(r.URL.Path).WriteError(w, e, id); err != nil {
		log.V(1).Info("client disconnected before the error was sent")
	}
}

// weights serves a peer. Peers cannot use the routes of gateways, nor gateways
// this one.
func (h *handler) weights(plain http.ResponseWriter, r *http.Request) {
	if h.Weights == nil {
		http.Error(plain, "this Mac does not share weights", http.StatusNotFound)
		return
	}
	w := front.NewWriter(plain, r.ProtoMajor, h.WriteTimeout)
	w.MinRate = weightsRate
	h.Weights.ServeHTTP(w, r)
	if err := w.FlushError(); err != nil {
		h.Log.V(1).Info("a Mac disconnected before its copy was complete", "address", r.RemoteAddr)
	}
}

// route serves a request by its path. An error means that nothing was written.
func (h *handler) route(w http.ResponseWriter, r *http.Request, id string) error {
	path := r.URL.Path
	switch {
	case decoders[path] != nil || path == dialect.PathResponses || path == dialect.PathInputTokens:
		return h.text(w, r, id)
	case strings.HasPrefix(path, dialect.PathResponses+"/"):
		return h.kept(w, r)
	case path == dialect.PathEmbeddings || path == dialect.PathRerank || path == dialect.PathRerankV2 || path == dialect.PathScore:
		return h.read(w, r, id)
	case front.IsModels(path):
		return h.models(w, r)
	case path == agentapi.PathHealth:
		return h.health(w, r)
	case path == agentapi.PathMetrics && h.Metrics != nil:
		return h.metrics(w, r)
	case h.Logs != nil && (path == agentapi.PathLogs || strings.HasPrefix(path, agentapi.PathLogs+"/")):
		return h.logs(w, r)
	}
	return openai.RouteNotFound(r.Method, path)
}

func (h *handler) health(w http.ResponseWriter, r *http.Request) error {
	if err := front.AllowMethods(w, r, http.MethodGet); err != nil {
		return err
	}
	if !h.Accepting() {
		return fmt.Errorf("%w: the agent is not accepting requests", ErrNotReady)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h *handler) metrics(w http.ResponseWriter, r *http.Request) error {
	if err := front.AllowMethods(w, r, http.MethodGet); err != nil {
		return err
	}
	h.Metrics.ServeHTTP(w, r)
	return nil
}

// logs serves the end of the agent's log or of an engine's.
func (h *handler) logs(w http.ResponseWriter, r *http.Request) error {
	if err := front.AllowMethods(w, r, http.MethodGet); err != nil {
		return err
	}
	n, err := strconv.Atoi(r.URL.Query().Get("bytes"))
	if err != nil || n < 1 || n > agentapi.MaxLogBytes {
		return openai.Invalid("bytes", "bytes must be a number from 1 to %d", agentapi.MaxLogBytes)
	}
	log, err := h.Logs(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, agentapi.PathLogs), "/"), n)
	if errors.Is(err, fs.ErrNotExist) {
		return openai.RouteNotFound(r.Method, r.URL.Path)
	}
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if _, err := w.Write(log); err != nil {
		return front.Gone(err)
	}
	return nil
}

func (h *handler) models(w http.ResponseWriter, r *http.Request) error {
	if err := front.AllowMethods(w, r, http.MethodGet); err != nil {
		return err
	}
	return front.Models{
		List: func() (iter.Seq[openai.Model], error) { return slices.Values(h.Engines.Models()), nil },
		Named: func(name string) (openai.Model, error) {
			if m, ok := h.Engines.Model(name); ok {
				return m, nil
			}
			return openai.Model{}, openai.ModelNotFound(name)
		},
	}.Serve(w, r)
}

// text serves a text route: decode, find the replica, hold its engine, wait for
// its admission, write. After the body is decoded, the response can be written
// only through the door, which the engine's admission opens.
func (h *handler) text(w http.ResponseWriter, r *http.Request, id string) error {
	if err := front.AllowMethods(w, r, http.MethodPost); err != nil {
		return err
	}
	if err := anthropicVersion(r); err != nil {
		return err
	}
	body, counted, err := h.readBody(w, r)
	if err != nil {
		return err
	}
	defer counted.release()
	images := h.imagesFor(r)
	defer images.release()
	req, err := h.request(w, r, body, images)
	counted.all = append(counted.all, images.kept...)
	if req != nil {
		counted.all, req.kept = append(counted.all, req.stored), counted
	}
	if err != nil {
		return err
	}
	req.wire.Id = id
	fetched := h.MaxBodyBytes - images.room
	if err := counted.more(req.textBytes() - int64(len(body)) - req.held - fetched); err != nil {
		return err
	}
	if req.forms() > 1 { // it stays for the others
		counted.decoded(body, req.bytes()-fetched)
		if err := counted.stay(); err != nil {
			return err
		}
	}
	return h.answer(admission.NewDoor(w), r, req)
}

// textBytes is what the texts and images of a conversation take, or the tokens of prompts. They may be
// longer than their request: the results of a call repeat its name, and a token may have one digit.
func (r *request) textBytes() (n int64) {
	chat := r.wire.GetChat()
	n = int64(len(chat.GetTemplateArgumentsJson()) + len(chat.GetToolsJson()))
	n += messageBytes(chat.GetMessages())
	for _, m := range chat.GetMessages() {
		for _, p := range m.GetParts() {
			n += int64(len(p.GetImage()))
		}
	}
	for _, p := range r.prompts {
		n += tokenBytes * int64(len(p.Tokens))
	}
	return n
}

// messageBytes is what the texts of messages take.
func messageBytes(all []*wire.ChatMessage) (n int64) {
	for _, m := range all {
		n += int64(len(m.GetContent()) + len(m.GetName()) + len(m.GetExtraJson()))
	}
	return n
}

// request decodes the body of a text route, and applies what a gateway's headers state.
func (h *handler) request(w http.ResponseWriter, r *http.Request, body []byte, images *fetchedImages) (*request, error) {
	place, err := h.placeFor(r, body)
	if err != nil {
		return nil, err
	}
	defer place.give()
	d := decoderFor(r.Header)
	d.FetchImage = place.without(images.fetcher())
	req, err := h.decode(d, place, r, body)
	if err != nil {
		return nil, err
	}
	agentapi.SetIgnored(w.Header(), agentapi.HeaderIgnored, d.Ignored())
	req.wire.Tenant, req.wire.Client = r.Header.Get(agentapi.HeaderTenant), r.Header.Get(agentapi.HeaderClient)
	req.wire.Progress = req.stream && (req.wire.Progress || r.Header.Get(agentapi.HeaderProgress) == "true")
	if req.wire.Priority, err = urgency(r.Header, req.priority); err == nil {
		req.form, req.echo, err = formOf(r, req)
	}
	return req, err
}

// decoderFor returns a decoder with the strictness that the gateway requires.
func decoderFor(h http.Header) *openai.Decoder {
	return &openai.Decoder{Strict: h.Get(agentapi.HeaderStrictFields) == "true"}
}

// decode reads the body of a text route.
func (h *handler) decode(d *openai.Decoder, place *place, r *http.Request, body []byte) (*request, error) {
	if decode := decoders[r.URL.Path]; decode != nil {
		return decode(d, r.Header, body)
	}
	if r.URL.Path == dialect.PathInputTokens {
		return h.decodeInputTokens(d, place, body)
	}
	return h.decodeResponse(d, place, body, r.Header)
}

// decoders read the bodies of text routes.
var decoders = map[string]func(*openai.Decoder, http.Header, []byte) (*request, error){
	pathChat: decodeChat, pathCompletions: decodeCompletion, dialect.PathMessages: decodeMessage, dialect.PathCountTokens: decodeCount,
}

// answer holds the engine, which may have to be loaded first, and writes its
// response. It waits for the hold while the client waits.
func (h *handler) answer(door admission.Door, r *http.Request, req *request) error {
	ctx, end := context.WithCancelCause(r.Context())
	cancel := func() { end(nil) }
	defer cancel()
	kept, err := h.keep(ctx, r, req.echo, end)
	if err != nil {
		return err
	}
	defer kept.Release()
	hold, err := h.acquire(ctx, r, req.model)
	if err != nil {
		return err
	}
	defer hold.Release()
	// Canceled before the release: the engine never works on this request after
	// the hold ended.
	defer cancel()
	if req.wire.Adapter, err = h.adapter(r, req.model); err != nil {
		return err
	}
	admitted, err := admit(ctx, hold, req)
	if err != nil {
		return err
	}
	if req.count != nil {
		return front.WriteJSON(door.Open(admitted), req.count(admitted.PromptTokens()))
	}
	a := answer{handler: h, admitted: admitted, form: req.form, id: req.wire.Id, kept: kept, progress: req.wire.Progress}
	if f, ok := a.form.(identified); ok && r.Header.Get(agentapi.HeaderResponseID) != "" {
		f.identify(r.Header.Get(agentapi.HeaderResponseID), r.Header.Get(agentapi.HeaderResponseProof))
	}
	if t, named := a.form.(eventForm); named {
		t.admitted(admitted.PromptTokens(), func() { end(errCancelled) })
		defer t.over()
	}
	a.each, a.includeUsage, a.continuousUsage = max(1, req.choices), req.includeUsage, req.continuousUsage
	a.forms = formsOf(a.form, req.forms())
	if others := len(a.forms) - 1; others > 0 {
		a.ask = req.asking(ctx, hold, others)
	} else {
		req.admitted()
	}
	if !req.stream {
		return a.whole(ctx, cancel, door)
	}
	return a.stream(ctx, cancel, door)
}

// formOf returns the form of the answer to a request, and how many bytes it keeps: a
// response of the Responses API repeats much of its request.
func formOf(r *http.Request, req *request) (f form, echo int64, err error) {
	if req.count != nil {
		return nil, 0, nil
	}
	f = req.answer(cmp.Or(r.Header.Get(agentapi.HeaderModel), req.model), time.Now().Unix())
	if response, ok := f.(*responseForm); ok {
		text, err := openai.Marshal(response.a.Response)
		response.entry.Shown = int64(len(text))
		return f, echoCopies * int64(len(text)), err
	}
	return f, 0, nil
}

// asking returns the function that requests another choice, one at a time. The request stays in
// memory for it, and counts until the last of the others was admitted.
func (r *request) asking(ctx context.Context, hold Hold, others int) func(i int) (*admission.Admitted, error) {
	return func(i int) (*admission.Admitted, error) {
		stream, err := hold.Generate(ctx, r.another(i))
		if err != nil {
			return nil, err
		}
		admitted, err := admission.Await(stream)
		if err != nil {
			return nil, err
		}
		if others--; others == 0 {
			r.admitted()
		}
		return admitted, nil
	}
}

// admit waits until the engine accepts a request. A prompt that exceeds the
// context length is shortened, if the client allows that.
func admit(ctx context.Context, hold Hold, req *request) (*admission.Admitted, error) {
	for {
		stream, err := hold.Generate(ctx, req.wire)
		var admitted *admission.Admitted
		if err == nil {
			admitted, err = admission.Await(stream)
		}
		if err == nil {
			return admitted, nil
		}
		refusal := wire.RefusalOf(err)
		if refusal.GetCode() != wire.Code_CODE_CONTEXT_LENGTH || req.shorten == nil || !req.shorten(refusal.GetLimitBytes()) {
			return nil, ended(ctx, err)
		}
	}
}

// urgency returns the engine's priority for a request, which is at most the one
// that the gateway allows; higher ones run first.
func urgency(h http.Header, named *int) (int32, error) {
	allowed := -openai.MostPriority
	if said := h.Get(agentapi.HeaderPriority); said != "" {
		n, err := strconv.Atoi(said)
		if err != nil || n < -openai.MostPriority || n > openai.MostPriority {
			return 0, openai.Invalid("", "The header %s must be a whole number from %d to %d.", agentapi.HeaderPriority, -openai.MostPriority, openai.MostPriority)
		}
		if allowed = n; named == nil {
			return int32(-n), nil
		}
	}
	switch {
	case named == nil:
		return 0, nil
	case *named < allowed:
		return 0, openai.Invalid("priority", "'priority' is %d, but the lowest value that this client may use is %d (lower values are served first). Send %d or more, or omit it. An API key may allow lower ones.", *named, allowed, allowed)
	}
	return int32(-*named), nil
}

// ended distinguishes an error of the engine from the end of the request's
// context.
func ended(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil:
		return err
	case errors.Is(context.Cause(ctx), front.ErrShuttingDown):
		return fmt.Errorf("%w: %w", ErrNotReady, front.ErrShuttingDown)
	case errors.Is(context.Cause(ctx), errUnread):
		return tooMany(err)
	case errors.Is(context.Cause(ctx), errCancelled):
		return &openai.Error{Status: http.StatusConflict, Type: openai.TypeInvalidRequest, Code: codeCancelled, Message: "The response was cancelled."}
	}
	return front.Gone(err)
}

// adapter returns the adapter that answers a request: the one that the gateway names, which
// names none for the model alone, or without a gateway the one that a name NAME:ADAPTER
// selects. A name of another deployment may end in the same way. An adapter that the
// replica does not have is refused, for its model alone would answer otherwise.
func (h *handler) adapter(r *http.Request, model string) (string, error) {
	t, err := h.target(r, model)
	if err != nil {
		return "", err
	}
	has, named := h.Engines.Adapters(t), r.Header.Get(agentapi.HeaderAdapter)
	switch {
	case named == "" && r.Header.Get(agentapi.HeaderReplica) != "":
		return "", nil
	case named == "":
		i := slices.IndexFunc(has, func(a string) bool { return strings.HasSuffix(model, ":"+a) })
		if i < 0 {
			return "", nil
		}
		return has[i], nil
	case !slices.Contains(has, named):
		return "", openai.ModelNotFound(model)
	}
	return named, nil
}

// target is the replica that the gateway picked, or without its headers the one
// that serves the name here.
func (h *handler) target(r *http.Request, model string) (Target, error) {
	uid, epoch := r.Header.Get(agentapi.HeaderReplica), r.Header.Get(agentapi.HeaderEpoch)
	if uid == "" && epoch == "" {
		t, ok := h.Engines.Resolve(model)
		if !ok {
			return Target{}, openai.ModelNotFound(model)
		}
		return t, nil
	}
	n, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || n < 1 || uid == "" {
		return Target{}, openai.Invalid("", "The headers %s and %s are required together: a UID, and an epoch of at least 1.", agentapi.HeaderReplica, agentapi.HeaderEpoch)
	}
	return Target{ReplicaUID: uid, Epoch: n}, nil
}
