package front

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/api/agentapi"
)

// PortLogs is the port of a gateway Pod that serves the logs of Macs.
const PortLogs = "logs"

// logWithin is how long a Mac's log may take, on the way to the gateway and from there.
const logWithin = 30 * time.Second

// Log returns at most n of the last bytes of the log of a Mac's agent, or of an engine's there
// if engine, a v1alpha1.EngineFile, is not empty.
func (w *Way) Log(ctx context.Context, mac, engine string, n int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, logWithin)
	defer cancel()
	u := w.base.JoinPath("logs", mac, engine)
	u.RawQuery = url.Values{"bytes": {strconv.Itoa(n)}}.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return "", fmt.Errorf("create the request: %w", err)
	}
	resp, err := w.http.Do(request)
	if err != nil {
		return "", fmt.Errorf("read a log through the gateway: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, agentapi.MaxLogBytes))
	if err != nil {
		return "", fmt.Errorf("read a log through the gateway: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", errors.New(strings.TrimSpace(string(b)))
	}
	return string(b), nil
}
