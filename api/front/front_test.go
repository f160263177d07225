package front_test

import (
	"context"
	"errors"
	"io"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"metalfleet.dev/metalfleet/api/dialect"
	"metalfleet.dev/metalfleet/api/front"
	"metalfleet.dev/metalfleet/api/openai"
)

// connection records the deadlines that a response sets.
type connection struct {
	*httptest.ResponseRecorder
	read, write []bool // true if the deadline sets a bound, false if it removes it
	broken      error
}

func newConnection() *connection { return &connection{ResponseRecorder: httptest.NewRecorder()} }

func (c *connection) SetReadDeadline(at time.Time) error {
	c.read = append(c.read, !at.IsZero())
	return nil
}

func (c *connection) SetWriteDeadline(at time.Time) error {
	c.write = append(c.write, !at.IsZero())
	return nil
}

func (c *connection) Write(p []byte) (int, error) {
	if c.broken != nil {
		return 0, c.broken
	}
	return c.ResponseRecorder.Write(p)
}

func TestEveryWriteHasADeadlineThatEndsNoIdleStream(t *testing.T) {
	for name, test := range map[string]struct {
		major int
		want  []bool
	}{
		"HTTP/1.1 keeps it, for the server's last flush": {major: 1, want: []bool{true, true}},
		"HTTP/2 removes it, as it would end the stream":  {major: 2, want: []bool{true, false, true, false}},
	} {
		c := newConnection()
		w := front.NewWriter(c, test.major, time.Second)
		if err := errors.Join(w.Send([]byte("a")), w.FlushError()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if !slices.Equal(c.write, test.want) {
			t.Errorf("%s: bounds %v, want %v", name, c.write, test.want)
		}
	}
}

// TestAResponseWithoutABodyHasADeadline: the server sends its head in the last flush, to a client that
// may read nothing. In HTTP/2 a response may begin long before its first write.
func TestAResponseWithoutABodyHasADeadline(t *testing.T) {
	for major, want := range map[int][]bool{1: {true}, 2: nil} {
		c := newConnection()
		front.NewWriter(c, major, time.Second).WriteHeader(http.StatusNoContent)
		if !slices.Equal(c.write, want) || c.Code != http.StatusNoContent {
			t.Errorf("HTTP/%d: bounds %v with %d, want %v", major, c.write, c.Code, want)
		}
	}
}

func TestAWriterKnowsWhatWasSent(t *testing.T) {
	w := front.NewWriter(newConnection(), 1, time.Second)
	if w.Status() != 0 || !w.FirstWrite().IsZero() || w.IdleSince() != w.Began() {
		t.Errorf("before the response: %d, %v, %v", w.Status(), w.FirstWrite(), w.IdleSince())
	}
	if _, err := w.Write([]byte("a")); err != nil {
		t.Fatal(err)
	}
	if w.Status() != http.StatusOK || w.FirstWrite().IsZero() || w.IdleSince() != w.FirstWrite() {
		t.Errorf("after a write: %d, %v, %v", w.Status(), w.FirstWrite(), w.IdleSince())
	}
}

func TestAClientThatDisconnectedReceivesNoError(t *testing.T) {
	c := newConnection()
	c.broken = io.ErrClosedPipe
	err := front.WriteJSON(front.NewWriter(c, 1, time.Second), "a")
	if !errors.Is(err, front.ErrClientGone) || !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("WriteJSON returned %v", err)
	}
}

func TestBodiesAreBounded(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		body, encoding string
		unknownLength  bool
		read           func(func()) ([]byte, error)
		status         int
		err            error
		deadlines      []bool
	}{
		"a body":                               {body: "12345", deadlines: []bool{true, false}},
		"one that is read by the caller":       {body: "12345", read: func(func()) ([]byte, error) { return []byte("12345"), nil }, deadlines: []bool{true, false}},
		"one that the caller interrupts":       {body: "12345", read: func(stop func()) ([]byte, error) { stop(); return nil, broken }, err: broken, deadlines: []bool{true, true}},
		"too long, by its length":              {body: "123456", status: 413},
		"too long, without a length":           {body: "123456", unknownLength: true, status: 413, deadlines: []bool{true}},
		"compressed, which is refused as such": {body: "12345", encoding: "gzip", status: 415},
	} {
		c := newConnection()
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(test.body))
		if test.unknownLength {
			r.ContentLength = -1
		}
		r.Header.Set("Content-Encoding", test.encoding)
		got, err := front.Limits{MaxBodyBytes: 5}.WithDefaults().ReadBody(front.NewWriter(c, 1, time.Second), r, test.read)
		var e *openai.Error
		switch {
		case test.status != 0:
			if !errors.As(err, &e) || e.Status != test.status {
				t.Errorf("%s: %v, want status %d", name, err, test.status)
			}
		case !errors.Is(err, test.err) || err == nil && string(got) != test.body:
			t.Errorf("%s: %q, %v", name, got, err)
		}
		if !slices.Equal(c.read, test.deadlines) {
			t.Errorf("%s: deadlines %v, want %v", name, c.read, test.deadlines)
		}
	}
}

func TestMethods(t *testing.T) {
	for name, test := range map[string]struct {
		method  string
		allowed []string
		want    string // Allow of a refusal
	}{
		"the method":                 {method: http.MethodPost, allowed: []string{http.MethodPost}},
		"HEAD wherever GET is":       {method: http.MethodHead, allowed: []string{http.MethodGet}},
		"HEAD where no GET is":       {method: http.MethodHead, allowed: []string{http.MethodPost}, want: "POST"},
		"another one of two":         {method: http.MethodDelete, allowed: []string{http.MethodGet, http.MethodHead}, want: "GET, HEAD"},
		"GET where POST is expected": {method: http.MethodGet, allowed: []string{http.MethodPost}, want: "POST"},
	} {
		w := httptest.NewRecorder()
		err := front.AllowMethods(w, httptest.NewRequest(test.method, "/", nil), test.allowed...)
		if got := w.Header().Get("Allow"); got != test.want || (err == nil) != (test.want == "") {
			t.Errorf("%s: Allow %q, %v", name, got, err)
		}
	}
}

func TestModelsOfAPath(t *testing.T) {
	models := front.Models{
		List: func() (iter.Seq[openai.Model], error) {
			return slices.Values([]openai.Model{openai.NewModel("org/m", 1, "ns")}), nil
		},
		Named: func(name string) (openai.Model, error) { return openai.Model{}, openai.ModelNotFound(name) },
	}
	for path, test := range map[string]struct{ body, err string }{
		dialect.PathModels:            {body: `"object":"list"`},
		dialect.PathModels + "/org/x": {err: "org/x"},
	} {
		w := newConnection()
		err := models.Serve(w, httptest.NewRequest(http.MethodGet, path, nil))
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) || !strings.Contains(w.Body.String(), test.body) {
			t.Errorf("%s: %q, %v", path, w.Body, err)
		}
		if !front.IsModels(path) || front.IsModels(path+"-other") != strings.Contains(path, "/org") {
			t.Errorf("IsModels is wrong near %s", path)
		}
	}
}

// slow is a connection whose client reads at a rate. A write beyond the deadline fails.
type slow struct {
	*connection
	perSecond int64
	deadline  time.Time
	taken     int64
}

func (s *slow) SetWriteDeadline(at time.Time) error { s.deadline = at; return nil }

func (s *slow) Write(p []byte) (int, error) {
	takes := time.Duration(int64(len(p)) * int64(time.Second) / s.perSecond)
	if left := time.Until(s.deadline); takes > left {
		time.Sleep(left)
		return 0, os.ErrDeadlineExceeded
	}
	time.Sleep(takes)
	s.taken += int64(len(p))
	return len(p), nil
}

func TestAClientThatReadsTooSlowlyInAllIsLeft(t *testing.T) {
	const rate, whole, timeout = 64 << 10, 8 << 20, 30 * time.Second
	for name, test := range map[string]struct {
		perSecond int64
		bound     int64
		ends      bool
	}{
		"a little before each deadline":      {perSecond: 400, bound: rate, ends: true},
		"at half of the rate":                {perSecond: rate / 2, bound: rate, ends: true},
		"at the rate":                        {perSecond: rate, bound: rate},
		"slowly, where each write is judged": {perSecond: 400},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &slow{connection: newConnection(), perSecond: test.perSecond}
				w := front.NewWriter(c, 1, timeout)
				w.MinRate = test.bound
				began, err := time.Now(), error(nil)
				for n := 0; n < whole && err == nil; n += 8 << 10 {
					err = w.Send(make([]byte, 8<<10))
				}
				if test.ends && time.Now().Before(c.deadline) {
					t.Error("the server may still end the response")
				}
				if took := time.Since(began); errors.Is(err, os.ErrDeadlineExceeded) != test.ends || test.ends && took > 2*timeout+time.Second {
					t.Errorf("after %s and %d bytes: %v, want an end: %t", took, c.taken, err, test.ends)
				}
			})
		})
	}
}

func TestAClientThatReadsALongWriteAtTheRateGetsIt(t *testing.T) {
	const rate, timeout = 64 << 10, 30 * time.Second
	for name, test := range map[string]struct {
		perSecond int64
		ends      bool
	}{"at the rate": {perSecond: rate}, "a little, then nothing": {perSecond: 400, ends: true}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := front.NewWriter(&slow{connection: newConnection(), perSecond: test.perSecond}, 1, timeout)
				w.MinRate = rate
				n, err := w.Write(make([]byte, 8<<20))
				if took := time.Since(w.Began()); errors.Is(err, os.ErrDeadlineExceeded) != test.ends || !test.ends && n != 8<<20 || test.ends && took > 2*timeout || !w.Delayed() {
					t.Errorf("after %s and %d bytes: %v, want an end: %t", took, n, err, test.ends)
				}
			})
		})
	}
}

// TestAGatewaysClientMayReadTheEventBefore while a Mac writes the next one.
func TestAGatewaysClientMayReadTheEventBefore(t *testing.T) {
	const rate, timeout, size = 64 << 10, 30 * time.Second, 4 << 20
	for held, ends := range map[time.Duration]bool{size / rate * time.Second: false, size/rate*time.Second + timeout + time.Second: true} {
		synctest.Test(t, func(t *testing.T) {
			c := &slow{connection: newConnection(), perSecond: 1 << 30}
			w := front.NewWriter(c, 2, timeout)
			w.RelayRate = rate
			if err := w.Send(make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			c.perSecond = 1
			if err := w.Send(make([]byte, held/time.Second)); errors.Is(err, os.ErrDeadlineExceeded) != ends {
				t.Errorf("after %s: %v", held, err)
			}
		})
	}
}

func TestNothingIsWrittenToABrokenResponse(t *testing.T) {
	c := newConnection()
	w := front.NewWriter(c, 2, time.Second)
	w.Break()
	if err := w.Send([]byte("a")); !errors.Is(err, os.ErrDeadlineExceeded) || c.Body.Len() > 0 {
		t.Errorf("%v, %q", err, c.Body)
	}
}

// breaking is a response whose deadline is being set until it may end.
type breaking struct {
	http.ResponseWriter
	begun, end chan struct{}
}

func (b breaking) Break() { close(b.begun); <-b.end }

// TestAttackAClientThatLeavesAtTheEnd of its response: a handler that returned while its
// response was being broken off would leave net/http's response without a stream, and the
// process would end with a panic.
func TestAttackAClientThatLeavesAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, leave := context.WithCancel(t.Context())
		w := breaking{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
		stop := front.BreakAfter(ctx, w)
		leave()
		<-w.begun
		returned := false
		go func() { stop(); returned = true }()
		synctest.Wait()
		if returned {
			t.Error("the handler returned before its response was broken off")
		}
		close(w.end)
		synctest.Wait()
		if !returned {
			t.Error("the handler does not return")
		}
		front.BreakAfter(t.Context(), w)() // has nothing to wait for
	})
}

// The client does not read, and would have half a minute.
func TestAResponseIsBrokenOff(t *testing.T) {
	ended := make(chan error, 1)
	ctx, end := context.WithCancel(t.Context())
	s := httptest.NewServer(http.HandlerFunc(func(plain http.ResponseWriter, r *http.Request) {
		w := front.NewWriter(plain, r.ProtoMajor, 30*time.Second)
		defer front.BreakAfter(ctx, w)()
		err := front.WriteJSON(w, strings.Repeat("x", 64<<20))
		if more := front.WriteJSON(w, "more"); !errors.Is(more, front.ErrClientGone) {
			t.Errorf("a write after that: %v", more)
		}
		ended <- err
	}))
	defer s.Close()
	resp, err := s.Client().Get(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	end() // the response has begun
	select {
	case err := <-ended:
		if !errors.Is(err, front.ErrClientGone) {
			t.Errorf("the response ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the response waits for its client")
	}
}
