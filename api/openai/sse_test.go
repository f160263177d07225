package openai

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s differs (-want +got):\n%s", name, d)
	}
}

func send(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func TestChatStreamBytes(t *testing.T) {
	rec := httptest.NewRecorder()
	w := NewEventWriter(rec)
	a := ChatAnswer{ID: "chatcmpl-1", Created: 1700000000, Model: "smollm2", IncludeUsage: true}
	send(t, w.Send(a.Opening()), w.Comment(KeepAlive), w.Send(a.Text("<Paris> & \"é\"\n\u2028")), w.Send(a.Finish(FinishStop)),
		w.Send(a.Usage(NewUsage(12, 3))), w.Done())
	golden(t, "chat_stream.sse", rec.Body.Bytes())
	if got := rec.Header().Get("Content-Type"); got != "text/event-stream" {
		t.Errorf("content type %q", got)
	}
}

func TestCompletionStreamBytes(t *testing.T) {
	rec := httptest.NewRecorder()
	w := NewEventWriter(rec)
	a := CompletionAnswer{ID: "cmpl-1", Created: 1700000000, Model: "smollm2"}
	send(t, w.Send(a.Text(" Paris")), w.Send(a.Finish(FinishLength)), w.Done())
	golden(t, "completion_stream.sse", rec.Body.Bytes())
}

func TestFailedStreamBytes(t *testing.T) {
	rec := httptest.NewRecorder()
	w := NewEventWriter(rec)
	a := ChatAnswer{ID: "chatcmpl-1", Created: 1700000000, Model: "smollm2"}
	send(t, w.Send(a.Opening()), w.Send(a.Text("Par")), w.Fail(EngineFailed(errors.New("pid 7 exited: secret"))))
	golden(t, "failed_stream.sse", rec.Body.Bytes())
	if bytes.Contains(rec.Body.Bytes(), []byte("[DONE]")) {
		t.Error("a failed stream ends with [DONE]")
	}
	if err := w.Send(a.Text("x")); !errors.Is(err, errStreamEnded) {
		t.Errorf("send after the end: %v", err)
	}
	if err := w.Done(); !errors.Is(err, errStreamEnded) {
		t.Errorf("done after the end: %v", err)
	}
}

func TestWholeAnswerBytes(t *testing.T) {
	var out []byte
	add := func(v any) {
		b, err := Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out = append(append(out, b...), '\n')
	}
	add(ChatAnswer{ID: "chatcmpl-1", Created: 1700000000, Model: "smollm2"}.Whole("Paris", FinishStop, NewUsage(12, 3)))
	add(CompletionAnswer{ID: "cmpl-1", Created: 1700000000, Model: "smollm2"}.Whole(" Paris", FinishLength, NewUsage(4, 16)))
	add(NewModelList(NewModel("smollm2", 1700000000, "metalfleet")))
	add(NewModelList())
	golden(t, "whole.jsonl", out)
}

func TestFailBeforeTheFirstEventIsAnOrdinaryError(t *testing.T) {
	rec := httptest.NewRecorder()
	w := NewEventWriter(rec)
	send(t, w.Fail(NoEndpoint("m", 1500*time.Millisecond)))
	if rec.Code != 503 || rec.Header().Get("Retry-After") != "2" || rec.Header().Get("Content-Type") != "application/json" {
		t.Errorf("status %d, header %v", rec.Code, rec.Header())
	}
}

func TestErrorBodiesAndStatuses(t *testing.T) {
	m := Memory{Used: 1, Needed: 2, Limit: 3}
	tests := []struct {
		err    error
		status int
		kind   string
		code   string
	}{
		{err: Invalid("top_p", "no"), status: 400, kind: TypeInvalidRequest, code: CodeInvalidValue},
		{err: Unauthorized(), status: 401, kind: TypeAuthentication, code: CodeInvalidAPIKey},
		{err: ModelNotFound("m"), status: 404, kind: TypeInvalidRequest, code: CodeModelNotFound},
		{err: RouteNotFound("GET", "/v2"), status: 404, kind: TypeInvalidRequest, code: CodeRouteNotFound},
		{err: MethodNotAllowed("GET", "/v1/completions", "POST"), status: 405, kind: TypeInvalidRequest, code: CodeMethodNotAllowed},
		{err: PrefillMemoryExceeded(m), status: 413, kind: TypeInvalidRequest, code: CodePrefillMemoryExceeded},
		{err: PrefillMemoryShort(m, time.Second), status: 503, kind: TypeUnavailable, code: CodePrefillMemoryExceeded},
		{err: RateLimited(time.Second), status: 429, kind: TypeRateLimit, code: CodeRateLimitExceeded},
		{err: EngineFailed(nil), status: 500, kind: TypeServer, code: CodeEngineFailed},
		{err: errors.New("dial /secret/path"), status: 500, kind: TypeServer, code: CodeInternal},
		{err: fmt.Errorf("wrapped: %w", Overloaded(time.Second)), status: 503, kind: TypeUnavailable, code: CodeOverloaded},
		{err: NoEndpoint("m", time.Second), status: 503, kind: TypeUnavailable, code: CodeNoEndpoint},
		{err: InsufficientMemory(m), status: 507, kind: TypeInsufficientMem, code: CodeInsufficientMemory},
	}
	for _, tc := range tests {
		rec := httptest.NewRecorder()
		send(t, WriteError(rec, tc.err))
		got := ParseError(rec.Code, rec.Header(), rec.Body.Bytes())
		if rec.Code != tc.status || got.Type != tc.kind || got.Code != tc.code || got.Message == "" {
			t.Errorf("%v: status %d, %+v", tc.err, rec.Code, got)
		}
		if strings.Contains(rec.Body.String(), "secret") {
			t.Errorf("cause leaks to the client: %s", rec.Body)
		}
		want := *AsError(tc.err)
		want.Cause = nil
		if d := cmp.Diff(&want, got); d != "" {
			t.Errorf("%v does not survive its bytes: %s", tc.err, d)
		}
	}
	rec := httptest.NewRecorder()
	send(t, WriteError(rec, Invalid("", "no")))
	if want := `{"error":{"message":"no","type":"invalid_request_error","param":null,"code":"invalid_value"}}`; rec.Body.String() != want {
		t.Errorf("body %s, want %s", rec.Body, want)
	}
	if e := ParseError(502, http.Header{}, []byte("<html>bad gateway")); e.Status != 502 || strings.Contains(e.Message, "html") {
		t.Errorf("foreign body: %+v", e)
	}
}

// TestErrorsOfAMacAreShort: a gateway keeps them while the request waits, and no limit counts them.
func TestErrorsOfAMacAreShort(t *testing.T) {
	long := strings.Repeat("\xff", 16<<10) // each byte becomes three
	e := ParseError(503, http.Header{}, []byte(`{"error":{"message":"`+long+`","type":"`+long+`","param":"`+long+`","code":"`+long+`"}}`))
	if n := len(e.Message) + len(e.Type) + len(e.Param) + len(e.Code); n < maxMessage || n > 2*maxMessage {
		t.Errorf("%d bytes of 64 KiB are kept, want about %d", n, maxMessage)
	}
}

// countingWriter counts writes and flushes.
type countingWriter struct {
	header          http.Header
	writes, flushes int
}

func (c *countingWriter) Header() http.Header         { return c.header }
func (c *countingWriter) WriteHeader(int)             {}
func (c *countingWriter) Write(p []byte) (int, error) { c.writes++; return len(p), nil }
func (c *countingWriter) Flush()                      { c.flushes++ }

func TestOneWriteAndOneFlushForEachEvent(t *testing.T) {
	c := &countingWriter{header: http.Header{}}
	w := NewEventWriter(c)
	a := ChatAnswer{ID: "i", Model: "m"}
	for i := range 5 {
		send(t, w.Send(a.Text("x")))
		if c.writes != i+1 || c.flushes != i+1 {
			t.Fatalf("after %d events: %d writes, %d flushes", i+1, c.writes, c.flushes)
		}
	}
}

// TestALargeEventIsNotKeptUntilTheStreamEnds: an echoed prompt is one, before an answer that may take hours.
func TestALargeEventIsNotKeptUntilTheStreamEnds(t *testing.T) {
	w := NewEventWriter(&countingWriter{header: http.Header{}})
	for _, n := range []int{keptBuffer / 2, 1 << 20, 10} {
		send(t, w.Comment(strings.Repeat("x", n)))
		if kept := w.buf.Cap(); kept > keptBuffer {
			t.Errorf("%d bytes are kept after an event of %d", kept, n)
		}
	}
}

func TestReaderReadsWhatTheWriterWrites(t *testing.T) {
	for _, name := range []string{"chat_stream.sse", "failed_stream.sse"} {
		raw, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		crlf := bytes.ReplaceAll(raw, []byte("\n"), []byte("\r\n"))
		for _, in := range []io.Reader{bytes.NewReader(raw), iotest.OneByteReader(bytes.NewReader(raw)), bytes.NewReader(crlf)} {
			text, err := readChat(in)
			switch name {
			case "chat_stream.sse":
				if text != "<Paris> & \"é\"\n\u2028" || !errors.Is(err, io.EOF) {
					t.Errorf("%s: %q, %v", name, text, err)
				}
			default:
				var e *Error
				if text != "Par" || !errors.As(err, &e) || e.Code != CodeEngineFailed {
					t.Errorf("%s: %q, %v", name, text, err)
				}
			}
		}
	}
}

func readChat(r io.Reader) (string, error) {
	reader := NewEventReader(r)
	var text string
	for {
		var c ChatCompletionChunk
		if err := reader.NextChunk(&c); err != nil {
			return text, err
		}
		for _, choice := range c.Choices {
			if choice.Delta.Content != nil {
				text += *choice.Delta.Content
			}
		}
	}
}

func TestReaderTellsACutStreamFromAFinishedOne(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join("testdata", "chat_stream.sse"))
	if err != nil {
		t.Fatal(err)
	}
	end := bytes.Index(raw, []byte("[DONE]\n\n")) + len("[DONE]\n\n")
	for cut := range raw[:end] {
		if _, err := readChat(bytes.NewReader(raw[:cut])); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
	}
}

func TestReaderIsBounded(t *testing.T) {
	for _, what := range []string{"x", "data: x\n", ": x\n"} {
		endless := &neverEnding{what: what}
		if _, err := NewEventReader(endless).Next(); !errors.Is(err, errLineTooLong) {
			t.Errorf("endless %q: %v", what, err)
		}
		if most := maxEventBytes * len(what); endless.read > most+64<<10 {
			t.Errorf("endless %q: read %d bytes, the bound is %d", what, endless.read, most)
		}
	}
}

// neverEnding repeats a text for ever.
type neverEnding struct {
	what string
	read int
}

func (n *neverEnding) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = n.what[(n.read+i)%len(n.what)]
	}
	n.read += len(p)
	return len(p), nil
}

func FuzzEventReader(f *testing.F) {
	for _, name := range []string{"chat_stream.sse", "completion_stream.sse", "failed_stream.sse"} {
		raw, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Add([]byte("data:a\r\ndata: b\n\n:c\n\nevent: x\n\ndata\n\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		all := func(r io.Reader) (events []string, last string) {
			reader := NewEventReader(r)
			for {
				data, err := reader.Next()
				if err != nil {
					return events, err.Error()
				}
				events = append(events, string(data))
			}
		}
		whole, end := all(bytes.NewReader(raw))
		split, splitEnd := all(iotest.OneByteReader(bytes.NewReader(raw)))
		if d := cmp.Diff(whole, split); d != "" || end != splitEnd {
			t.Fatalf("splitting changes the events: %s; %s, %s", d, end, splitEnd)
		}
	})
}
