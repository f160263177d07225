//go:build !race

package system

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/agent/hub/hubtest"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/openai"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/quant"
	"metalfleet.dev/metalfleet/metal/tinymodel"
	"metalfleet.dev/metalfleet/test/fleet"
)

// refusedSource wants a source not to be accepted for a reason, with words in the
// message.
func (s *suite) refusedSource(t *testing.T, name string, source v1alpha1.ModelSource, reason string, words ...string) {
	t.Helper()
	md := s.deploy(t, fleet.Model{Name: name}, func(spec *v1alpha1.ModelDeploymentSpec) { spec.Model = source })
	wantWords(t, s.wantCondition(t, md, v1alpha1.ConditionAccepted, metav1.ConditionFalse, reason), words...)
	s.remove(t, md)
}

func (s *suite) sourceMissing(t *testing.T) {
	s.refusedSource(t, "missing", v1alpha1.ModelSource{Source: "file://nowhere.gguf"}, v1alpha1.ReasonSourceNotFound, "nowhere.gguf")
}

func (s *suite) sourceOutside(t *testing.T) {
	s.refusedSource(t, "by-dots", v1alpha1.ModelSource{Source: "file://../secret.gguf"}, v1alpha1.ReasonSourceForbidden)
	s.refusedSource(t, "by-link", v1alpha1.ModelSource{Source: "file://link.gguf"}, v1alpha1.ReasonSourceForbidden)
}

func (s *suite) sourceTruncated(t *testing.T) {
	s.refusedSource(t, "cut", v1alpha1.ModelSource{Source: "file://cut.gguf"}, v1alpha1.ReasonInvalidModel)
}

func (s *suite) sourceOfAnotherDigest(t *testing.T) {
	s.refusedSource(t, "forged", v1alpha1.ModelSource{Source: "file://tiny.gguf", SHA256: strings.Repeat("0", 64)}, v1alpha1.ReasonDigestMismatch, strings.Repeat("0", 12))
}

func (s *suite) sourceOfAPrivateHost(t *testing.T) {
	s.refusedSource(t, "private", v1alpha1.ModelSource{Source: "https://127.0.0.2:1/x.gguf", SHA256: s.remote.sha256}, v1alpha1.ReasonSourceForbidden, "loopback", "--allow-source-cidr")
}

func (s *suite) tooLarge(t *testing.T) {
	md := s.deploy(t, fleet.Model{Name: "huge", File: "slow.gguf", KVCacheTokens: 100_000_000}) // 4,096 bytes each
	message := s.wantCondition(t, md, v1alpha1.ConditionFits, metav1.ConditionFalse, v1alpha1.ReasonTooLarge)
	wantWords(t, message, small, middle, large, "GiB")
	s.remove(t, md)
}

func (s *suite) nameConflict(t *testing.T) {
	owner := s.deploy(t, fleet.Model{Name: "owner", Served: "chat"}, replicas(0))
	s.wantCondition(t, owner, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	s.namespace(t, "claimant")
	eventually(t, "a later second begins, so that the owner is older", func(context.Context) error {
		if age := time.Since(owner.CreationTimestamp.Time); age < time.Second {
			return fmt.Errorf("it is %s old", age)
		}
		return nil
	})
	late := s.deploy(t, fleet.Model{Namespace: "claimant", Name: "late", Served: "chat"}, replicas(0))
	message := s.wantCondition(t, late, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonNameConflict)
	wantWords(t, message, "chat", "default/owner")
	s.remove(t, owner)
	s.wantCondition(t, late, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	s.remove(t, late)
}

func (s *suite) download(t *testing.T) {
	md := s.deploy(t, fleet.Model{Name: "remote", MaxTokens: slowContext}, func(spec *v1alpha1.ModelDeploymentSpec) {
		spec.Model = v1alpha1.ModelSource{Source: s.remote.url, SHA256: s.remote.sha256}
	})
	s.waitReady(t, md, 1)
	s.remote.mu.Lock()
	defer s.remote.mu.Unlock()
	resumed := 0
	for _, header := range s.remote.ranges {
		if from, ok := strings.CutPrefix(header, "bytes="); ok && !strings.HasPrefix(from, "0-") {
			resumed++
		}
	}
	if resumed == 0 || s.remote.sent > 2*s.remote.size {
		t.Errorf("the server was asked for %q and sent %d bytes of a file of %d: nothing was resumed", s.remote.ranges, s.remote.sent, s.remote.size)
	}
	if _, err := s.ask(t.Context(), "remote", false); err != nil {
		t.Error(err)
	}
	s.remove(t, md)
}

func (s *suite) downloadOfAnotherDigest(t *testing.T) {
	forged := newWebModel(t, slow(3))
	md := s.deploy(t, fleet.Model{Name: "swapped"}, func(spec *v1alpha1.ModelDeploymentSpec) {
		spec.Model = v1alpha1.ModelSource{Source: forged.url, SHA256: strings.Repeat("0", 64)}
	})
	eventually(t, "a condition has the reason DigestMismatch", func(ctx context.Context) error {
		now, err := s.read(ctx, md)
		if err != nil {
			return err
		}
		for _, c := range now.Status.Conditions {
			if c.Reason == v1alpha1.ReasonDigestMismatch && c.Status != metav1.ConditionTrue {
				return nil
			}
		}
		return errors.New(sentences(now.Status.Conditions))
	})
	all, err := s.replicasOf(t.Context(), md)
	must(t, err)
	for _, r := range all {
		if r.Status.Memory.FootprintBytes > 0 {
			t.Errorf("replica %s loaded the file", r.Name)
		}
	}
	s.remove(t, md)
}

// repositoryOfAHub: a repository is resolved once, fetched and served; a later
// commit on its branch changes nothing.
func (s *suite) repositoryOfAHub(t *testing.T) {
	publish := func(seed uint64) {
		dir := filepath.Join(t.TempDir(), "model")
		c := slow(seed)
		c.Family = tinymodel.Qwen3
		must(t, tinymodel.WriteFolder(dir, c, tinymodel.Layout{Matrices: quant.AffineOf(4, 64, quant.BFloat16), ShardBytes: 1 << 20}))
		entries, err := os.ReadDir(dir)
		must(t, err)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		s.hub.Put("org/tiny", hubtest.Of(hubFiles(t, dir, names...)))
		adapter := filepath.Join(t.TempDir(), "adapter")
		must(t, tinymodel.Adapter{Seed: seed, Rank: 8, Alpha: 64}.Write(adapter, c))
		s.hub.Put("org/sql", hubtest.Of(hubFiles(t, adapter, "adapter_config.json", "adapter_model.safetensors")))
	}
	publish(11)
	md := s.deploy(t, fleet.Model{Name: "published", MaxTokens: slowContext}, func(spec *v1alpha1.ModelDeploymentSpec) {
		spec.Model = v1alpha1.ModelSource{Source: "hf://org/tiny"}
		spec.Adapters = []v1alpha1.AdapterSpec{{Name: "sql", Source: "hf://org/sql"}}
	})
	s.waitReady(t, md, 1)
	alone, err := s.ask(t.Context(), "published", false)
	must(t, err)
	with, err := s.ask(t.Context(), "published:sql", false)
	must(t, err)
	if alone.Text == with.Text || with.Text == "" {
		t.Errorf("the model answers %q, and its adapter %q", alone.Text, with.Text)
	}
	_, err = s.ask(t.Context(), "published:other", false)
	if err == nil {
		t.Error("an adapter that there is not answers")
	} else {
		wantWords(t, err.Error(), "404", "published:other")
	}
	before := s.replicas(t, md, 1)[0]
	publish(12) // the hub has the old commit no more
	if _, err := s.ask(t.Context(), "published", false); err != nil {
		t.Error(err)
	}
	if after := s.replicas(t, md, 1)[0]; after.UID != before.UID || len(after.Spec.Model.Commit) != 40 {
		t.Errorf("replica %s of commit %q, was %s: want the same", after.Name, after.Spec.Model.Commit, before.Name)
	}
	s.remove(t, md)
	s.refusedSource(t, "unpublished", v1alpha1.ModelSource{Source: "hf://org/none", Revision: "v1"}, v1alpha1.ReasonSourceNotFound, "org/none", "token")
}

// encoderOfAHub: a repository of sentence-transformers, with its modules in
// folders, becomes an engine that makes embeddings, and refuses to chat.
func (s *suite) encoderOfAHub(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	must(t, tinymodel.Readers()[0].Write(dir))
	files := hubFiles(t, dir, "1_Pooling/config.json", "config.json", "config_sentence_transformers.json", "model.safetensors", "modules.json",
		"sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json")
	s.hub.Put("org/encoder", hubtest.Of(files))
	md := s.deploy(t, fleet.Model{Name: "encoder", MaxTokens: 64}, func(spec *v1alpha1.ModelDeploymentSpec) {
		spec.Model = v1alpha1.ModelSource{Source: "hf://org/encoder"}
	})
	s.waitReady(t, md, 1)
	if m := s.replicas(t, md, 1)[0].Spec.Model; m.Facts.Task != model.Embed || len(m.Files) != len(files) {
		t.Errorf("the replica is of %+v", m)
	}
	if _, err := s.ask(t.Context(), "encoder", false); err == nil {
		t.Error("an encoder chats")
	} else {
		wantWords(t, err.Error(), "400", "computes embeddings", "embeddings")
	}
	s.remove(t, md)
}

// refusedByTheAPI applies invalid manifests, strictly as kubectl does.
func (s *suite) refusedByTheAPI(t *testing.T) {
	for name, test := range map[string]struct {
		spec map[string]any
		want string
	}{
		"unknown field":          {spec: map[string]any{"model": map[string]any{"source": "file://a.gguf"}, "replica": 1}, want: "replica"},
		"no tokens":              {spec: map[string]any{"model": map[string]any{"source": "file://a.gguf"}, "context": map[string]any{"maxTokens": -1}}, want: "context.maxTokens"},
		"cache under one length": {spec: map[string]any{"model": map[string]any{"source": "file://a.gguf"}, "context": map[string]any{"maxTokens": 512, "kvCacheTokens": 256}}, want: "one request of maximum length fits"},
		"https without a digest": {spec: map[string]any{"model": map[string]any{"source": "https://example.com/a.gguf"}}, want: "sha256 is required"},
		"another scheme":         {spec: map[string]any{"model": map[string]any{"source": "ftp://example.com/a.gguf"}}, want: "must begin with file://"},
		"a digest for a hub":     {spec: map[string]any{"model": map[string]any{"source": "hf://org/model", "sha256": strings.Repeat("0", 64)}}, want: "sha256 is only valid for file:// and https:// sources"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": v1alpha1.GroupVersion.String(), "kind": "ModelDeployment",
				"metadata": map[string]any{"namespace": "default", "name": "bad"}, "spec": test.spec,
			}}
			err := s.Client.Create(t.Context(), o, client.FieldValidation(metav1.FieldValidationStrict))
			if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
				t.Fatalf("answer %v, want a refusal", err)
			}
			wantWords(t, err.Error(), test.want)
		})
	}
}

// badRequests asks the gateway for what it has to refuse, in the API's own shape.
func (s *suite) badRequests(t *testing.T) {
	asleep := s.deploy(t, fleet.Model{Name: "asleep"}, replicas(0))
	s.wantCondition(t, asleep, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	const message = `"messages":[{"role":"user","content":"hi"}]`
	for name, test := range map[string]struct {
		body   string
		status int
		retry  bool
	}{
		"unknown model":  {body: `{"model":"unknown",` + message + `}`, status: http.StatusNotFound},
		"no endpoint":    {body: `{"model":"asleep",` + message + `}`, status: http.StatusServiceUnavailable, retry: true},
		"malformed JSON": {body: `{"model":`, status: http.StatusBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			eventually(t, "the gateway refuses it correctly", func(ctx context.Context) error {
				_, err := fleet.Post(ctx, s.URL+"/v1/chat/completions", []byte(test.body), fleet.Question{Patience: time.Second})
				var refusal *openai.Error
				if !errors.As(err, &refusal) {
					return fmt.Errorf("answer %w, want an error of the API", err)
				}
				if refusal.Status != test.status || refusal.Message == "" || (refusal.RetryAfter > 0) != test.retry {
					return fmt.Errorf("refusal %+v, want HTTP %d", refusal, test.status)
				}
				return nil
			})
		})
	}
	s.remove(t, asleep)
}
