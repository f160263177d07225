package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"
)

// limits are the ends of every wait.
type limits struct {
	answer time.Duration // from a request to the head of its answer, connecting included
	stall  time.Duration // without a byte
	whole  time.Duration // for the file; a slower network is slower than compiling
	report time.Duration // between progress lines
}

var usual = limits{answer: 5 * time.Second, stall: 20 * time.Second, whole: 5 * time.Minute, report: 5 * time.Second}

// Causes with which a request is cancelled.
var (
	errNoAnswer = errors.New("no answer")
	errStalled  = errors.New("stalled")
	errSlow     = errors.New("too slow")
)

// download fetches one file.
type download struct {
	url, to string
	limits  limits
	report  func(line string)

	announced bool
	began     time.Time
}

// run fetches the file. One that breaks off is resumed once.
func (d *download) run(ctx context.Context) error {
	where, err := url.Parse(d.url)
	if err != nil || where.Host == "" {
		return fmt.Errorf("%s is not a URL; correct %s", d.url, mirrorVariable)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, d.limits.whole, errSlow)
	defer cancel()
	file, err := os.Create(d.to)
	if err != nil {
		return err
	}
	defer file.Close()
	d.began = time.Now()
	var got, size int64
	for attempt := range 2 {
		got, size, err = d.attempt(ctx, file, got)
		if err == nil {
			return file.Close()
		}
		if got == 0 || context.Cause(ctx) != nil {
			break
		}
		if attempt == 0 {
			d.report(fmt.Sprintf("the download broke off after %s; resuming it", ofSize(got, size)))
		}
	}
	return d.explain(where, got, size, err)
}

// explain names what was tried, what went wrong and what to do about it.
func (d *download) explain(where *url.URL, got, size int64, err error) error {
	host := where.Scheme + "://" + where.Host
	var status statusError
	switch {
	case errors.Is(err, context.Canceled) && !errors.Is(err, errStalled):
		return err
	case errors.As(err, &status):
		return fmt.Errorf("%s is not served: %w", d.url, err)
	case errors.Is(err, errSlow):
		return fmt.Errorf("%s has not come within %s (%s), and compiling takes less; %s can name a mirror", d.url, d.limits.whole, ofSize(got, size), mirrorVariable)
	case got > 0:
		return fmt.Errorf("%s broke off after %s, twice: %w", d.url, ofSize(got, size), err)
	case errors.Is(err, errNoAnswer):
		return fmt.Errorf("%s did not answer within %s; %s can name a mirror", host, d.limits.answer, mirrorVariable)
	}
	return fmt.Errorf("%s cannot be reached: %w; %s can name a mirror", host, bare(err), mirrorVariable)
}

// bare leaves out the URL that an error of net/http repeats.
func bare(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// statusError is a response without the file.
type statusError string

func (s statusError) Error() string { return "the answer is " + string(s) }

// attempt fetches what follows the first from bytes, and returns how many are
// there and how many there should be.
func (d *download) attempt(ctx context.Context, file *os.File, from int64) (got, size int64, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	idle := time.AfterFunc(d.limits.answer, func() { cancel(errNoAnswer) })
	defer idle.Stop()

	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = (&net.Dialer{Timeout: d.limits.answer}).DialContext
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, CheckRedirect: func(_ *http.Request, via []*http.Request) error {
		idle.Reset(d.limits.answer) // a redirect to another host gets the full time again
		if len(via) > 5 {
			return errors.New("more than five redirects")
		}
		return nil
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url, nil)
	if err != nil {
		return from, 0, err
	}
	if from > 0 {
		request.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
	}
	answer, err := client.Do(request)
	if err != nil {
		return from, 0, caused(ctx, err)
	}
	defer answer.Body.Close()
	switch {
	case answer.StatusCode == http.StatusOK:
		from = 0
	case from > 0 && answer.StatusCode == http.StatusPartialContent:
	default:
		return from, 0, statusError(answer.Status)
	}
	if answer.ContentLength >= 0 {
		size = from + answer.ContentLength
	}
	if err := file.Truncate(from); err != nil {
		return from, size, err
	}
	if _, err := file.Seek(from, io.SeekStart); err != nil {
		return from, size, err
	}
	stall := time.AfterFunc(d.limits.stall, func() { cancel(errStalled) })
	defer stall.Stop()
	idle.Stop()
	got, err = d.copy(file, answer.Body, from, size, func() { stall.Reset(d.limits.stall) })
	return got, size, caused(ctx, err)
}

// caused adds the cause of the cancellation to an error of a cancelled request.
func caused(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return cause
	}
	return err
}

// copy writes the body to the file, with a line of progress now and then.
func (d *download) copy(to io.Writer, from io.Reader, got, size int64, alive func()) (int64, error) {
	if !d.announced {
		d.announced = true
		d.report(fmt.Sprintf("fetching %s, %s", d.url, ofSize(got, size)))
	}
	buffer := make([]byte, 256<<10)
	reported := time.Now()
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			alive()
			if _, err := to.Write(buffer[:n]); err != nil {
				return got, err
			}
			got += int64(n)
		}
		switch {
		case errors.Is(err, io.EOF):
			return got, nil
		case err != nil:
			return got, err
		case time.Since(reported) >= d.limits.report:
			reported = time.Now()
			d.report(fmt.Sprintf("%s after %d s", ofSize(got, size), int(time.Since(d.began).Seconds())))
		}
	}
}

// ofSize is for example "40 of 80 MB".
func ofSize(got, size int64) string {
	if size <= 0 {
		return fmt.Sprintf("%.1f MB", float64(got)/1e6)
	}
	return fmt.Sprintf("%.1f of %.1f MB", float64(got)/1e6, float64(size)/1e6)
}
