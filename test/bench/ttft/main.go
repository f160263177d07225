// Command ttft measures what the gateway adds to the first token: streams of a
// tiny model, through a gateway's own program and straight at the agent, in turns,
// one after the other.
//
// It owns the requests, the bound and the record in docs/bench. The system is
// that of make test-clients (test/oracle/clients/tinyfleet). It refuses an answer that
// is not a stream with text.
//
//	go run ./test/bench/ttft        (make bench-ttft)
//
// Start reading at round.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/test/bench/report"
	"metalfleet.dev/metalfleet/test/oracle/clients/tinyfleet"
)

// mostAdded is the bound: a first token comes at most so many milliseconds later.
const mostAdded = 1

const about = "`make bench-ttft`: chat completions of a tiny model, streamed, one after the other on a connection that is kept; time from the request to the\n" +
	"first event with text. Through the gateway's own program in plain HTTP, and straight at the agent with mutual TLS, in turns;\n" +
	"each run is the median of a round. Added is the difference of the two medians of a round."

func main() {
	root := flag.String("root", ".", "folder whose bin holds the programs")
	rounds := flag.Int("rounds", 15, "how often each way is measured, in turns")
	each := flag.Int("requests", 60, "requests of a round")
	out := flag.String("out", filepath.Join("docs", "bench"), "folder for ttft.json and ttft.md; empty writes none")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var r *report.Report
	err := tinyfleet.With(ctx, *root, "", func(ctx context.Context, w *tinyfleet.World) (err error) {
		url, config := w.Agent()
		ways := []way{{"through the gateway", w.URL, &http.Transport{}}, {"straight at the agent", url, &http.Transport{TLSClientConfig: config}}}
		r, err = measure(ctx, ways, *rounds, *each)
		return err
	})
	if err == nil {
		err = r.Finish(*out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-ttft:", err)
		os.Exit(1)
	}
}

// way to the agent.
type way struct {
	name, url string
	transport *http.Transport
}

// measure goes both ways in each round, the first of them in turns, after one
// round that is not counted.
func measure(ctx context.Context, ways []way, rounds, each int) (*report.Report, error) {
	took := make([][]float64, len(ways))
	for n := range rounds + 1 {
		for i := range ways {
			at := (i + n) % len(ways)
			median, err := round(ctx, ways[at], each)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", ways[at].name, err)
			}
			if n > 0 {
				took[at] = append(took[at], median)
			}
		}
	}
	var added []float64
	for i := range took[0] {
		added = append(added, took[0][i]-took[1][i])
	}
	r := report.New("ttft", "The first token through the gateway", about)
	r.Add("added to the first token, p50", "ms", report.AtMost(mostAdded), added...)
	for i, w := range ways {
		r.Add("first token "+w.name+", p50", "ms", report.Bound{}, took[i]...)
	}
	return r, nil
}

// round is the median time to the first text, in milliseconds.
func round(ctx context.Context, w way, requests int) (float64, error) {
	defer w.transport.CloseIdleConnections()
	c := &http.Client{Transport: w.transport, Timeout: time.Minute}
	var all []time.Duration
	for range requests {
		t, err := first(ctx, c, w.url)
		if err != nil {
			return 0, err
		}
		all = append(all, t)
	}
	slices.Sort(all)
	return float64(all[len(all)/2].Nanoseconds()) / 1e6, nil
}

const body = `{"model":"` + tinyfleet.Chat + `","messages":[{"role":"user","content":"Hello"}],"max_tokens":8,"temperature":0,"stream":true}`

// first is the time to the first text of one stream, which is read to its end.
func first(ctx context.Context, c *http.Client, url string) (time.Duration, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	began := time.Now()
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("the answer is %s", resp.Status)
	}
	took := time.Duration(0)
	events := openai.NewEventReader(resp.Body)
	for {
		var chunk openai.ChatCompletionChunk
		switch err := events.NextChunk(&chunk); {
		case errors.Is(err, io.EOF) && took > 0:
			_, err := io.Copy(io.Discard, resp.Body) // else the connection is not kept
			return took, err
		case err != nil:
			return 0, fmt.Errorf("stream: %w", err)
		}
		if took == 0 && len(chunk.Choices) > 0 && chunk.Choices[0].Delta.Content != nil && *chunk.Choices[0].Delta.Content != "" {
			took = time.Since(began)
		}
	}
}
