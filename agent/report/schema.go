package report

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	ac "metalfleet.dev/metalfleet/api/applyconfiguration/api/v1alpha1"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

const (
	// schemaAge is how long a schema is believed: CRDs are upgraded while agents run.
	schemaAge = time.Hour
	// schemaRetry is how soon one that could not be read is asked for again.
	schemaRetry = time.Minute
	// maxSchema bounds what is read of it.
	maxSchema = 16 << 20
)

// node is what of a served schema decides which fields may be written.
type node struct {
	Properties map[string]*node `json:"properties"`
	Items      *node            `json:"items"`
	Required   []string         `json:"required"`
	Enum       []any            `json:"enum"`
	Preserve   bool             `json:"x-kubernetes-preserve-unknown-fields"`
	// Others is the schema of a map's values; true means anything.
	Others json.RawMessage `json:"additionalProperties"`
	Kinds  []struct {
		Group string `json:"group"`
		Kind  string `json:"kind"`
	} `json:"x-kubernetes-group-version-kind"`
}

// prune removes from a JSON value what the schema does not know: fields, and values
// of a closed set. Objects that then lack a required field are removed too, and ok
// is false if the value itself is one. The removed paths are added to dropped.
func (n *node) prune(value json.RawMessage, path string, dropped map[string]bool) (out json.RawMessage, ok bool) {
	var fields map[string]json.RawMessage
	var items []json.RawMessage
	var scalar any
	switch {
	case bytes.HasPrefix(value, []byte("{")) && json.Unmarshal(value, &fields) == nil:
		out, ok = n.pruneObject(fields, path, dropped)
	case n.Items != nil && bytes.HasPrefix(value, []byte("[")) && json.Unmarshal(value, &items) == nil:
		kept := make([]json.RawMessage, 0, len(items))
		for _, item := range items {
			if item, ok := n.Items.prune(item, path+"[]", dropped); ok {
				kept = append(kept, item)
			}
		}
		return encode(kept), true
	default:
		out, ok = value, len(n.Enum) == 0 || json.Unmarshal(value, &scalar) == nil && slices.Contains(n.Enum, scalar)
	}
	if !ok {
		dropped[path] = true
	}
	return out, ok
}

func (n *node) pruneObject(fields map[string]json.RawMessage, path string, dropped map[string]bool) (json.RawMessage, bool) {
	var others node
	open := n.Preserve || len(n.Properties) == 0
	if len(n.Others) > 0 && json.Unmarshal(n.Others, &others) == nil {
		open = false
	}
	kept := make(map[string]json.RawMessage, len(fields))
	for name, value := range fields {
		field := n.Properties[name]
		switch {
		case field != nil:
		case open:
			kept[name] = value
			continue
		case len(n.Others) > 0:
			field = &others
		default:
			dropped[path+"."+name] = true
			continue
		}
		if value, ok := field.prune(value, path+"."+name, dropped); ok {
			kept[name] = value
		}
	}
	return encode(kept), !slices.ContainsFunc(n.Required, func(name string) bool { _, has := kept[name]; return !has })
}

// encode joins JSON values, which cannot fail.
func encode(v any) json.RawMessage {
	b, _ := json.Marshal(v)
	return b
}

// Schema is the API server's own description of a MacNode's status, read
// when it is first needed and again after a while.
type Schema struct {
	log  logr.Logger
	read func(context.Context) (*node, error)

	mu    sync.Mutex // guards what follows
	known *node
	due   time.Time
	said  string
}

// Served reads the schema that the API server serves. Every account may: it is
// part of discovery. Where an administrator took that right away, everything is
// written and the API server refuses what it does not know.
func Served(config *rest.Config, log logr.Logger) (*Schema, error) {
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("create client for the served schema: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("URL of the served schema: %w", err)
	}
	url := strings.TrimSuffix(base.String(), "/") + "/openapi/v3/apis/" + v1alpha1.GroupVersion.String()
	return &Schema{log: log, read: func(ctx context.Context) (*node, error) { return fetchSchema(ctx, c, url) }}, nil
}

func fetchSchema(ctx context.Context, c *http.Client, url string) (*node, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, fmt.Errorf("read the served schema: %w", err)
	}
	req.Header.Set("Accept", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		return nil, fmt.Errorf("read the served schema: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read the served schema: HTTP %d", resp.StatusCode)
	}
	var doc struct {
		Components struct {
			Schemas map[string]*node `json:"schemas"`
		} `json:"components"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxSchema)).Decode(&doc); err != nil {
		return nil, fmt.Errorf("decode the served schema: %w", err)
	}
	for _, s := range doc.Components.Schemas {
		for _, k := range s.Kinds {
			if k.Kind == "MacNode" && k.Group == v1alpha1.GroupVersion.Group && s.Properties["status"] != nil {
				return s.Properties["status"], nil
			}
		}
	}
	return nil, errors.New("the served schema has no MacNode status")
}

// fit converts a status for an apply, without what the API server would refuse it for.
func (s *Schema) fit(ctx context.Context, status *v1alpha1.MacNodeStatus) (*ac.MacNodeStatusApplyConfiguration, error) {
	value, err := json.Marshal(status)
	if err != nil {
		return nil, err
	}
	if s != nil {
		value = s.pruned(ctx, value)
	}
	out := ac.MacNodeStatus()
	return out, json.Unmarshal(value, out)
}

func (s *Schema) pruned(ctx context.Context, status json.RawMessage) json.RawMessage {
	n := s.current(ctx)
	if n == nil {
		return status
	}
	dropped := map[string]bool{}
	out, ok := n.prune(status, "status", dropped)
	s.logDropped(dropped)
	if !ok {
		return status // then the API server reports the error
	}
	return out
}

// current is the newest schema that could be read, or nil.
func (s *Schema) current(ctx context.Context) *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().Before(s.due) {
		return s.known
	}
	n, err := s.read(ctx)
	if err != nil {
		s.due = time.Now().Add(schemaRetry)
		s.log.V(1).Info("Cannot read the served schema; using the last known one", "reason", err.Error())
		return s.known
	}
	s.known, s.due = n, time.Now().Add(schemaAge)
	return n
}

// doubt has the schema read again: something was refused.
func (s *Schema) doubt() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = time.Time{}
}

// logDropped logs what was left out, once for each set of fields.
func (s *Schema) logDropped(dropped map[string]bool) {
	words := strings.Join(slices.Sorted(maps.Keys(dropped)), " ")
	s.mu.Lock()
	defer s.mu.Unlock()
	if words == s.said {
		return
	}
	s.said = words
	if words != "" {
		s.log.Info("The MacNode CRD lacks fields that this agent reports; upgrade the CRDs", "leftOut", words)
	}
}
