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
	"metalfleet.dev/metalfleet/test/fleet"
	"metalfleet.dev/metalfleet/test/tinymodel"
)

func (s *suite) sourceMissing(t *testing.T) {
	md := s.deploy(t, "default", "missing", source("nowhere.gguf"))
	message := s.wantCondition(t, md, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonSourceNotFound)
	wantWords(t, message, "nowhere.gguf")
	s.remove(t, md)
}

func (s *suite) sourceOutside(t *testing.T) {
	for name, path := range map[string]string{"by-dots": "../secret.gguf", "by-link": "link.gguf"} {
		md := s.deploy(t, "default", name, source(path))
		s.wantCondition(t, md, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonSourceForbidden)
		s.remove(t, md)
	}
}

func (s *suite) sourceTruncated(t *testing.T) {
	md := s.deploy(t, "default", "cut", source("cut.gguf"))
	s.wantCondition(t, md, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidModel)
	s.remove(t, md)
}

func (s *suite) sourceOfAnotherDigest(t *testing.T) {
	md := s.deploy(t, "default", "forged", func(md *v1alpha1.ModelDeployment) { md.Spec.Model.SHA256 = strings.Repeat("0", 64) })
	message := s.wantCondition(t, md, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonDigestMismatch)
	wantWords(t, message, strings.Repeat("0", 12))
	s.remove(t, md)
}

func (s *suite) sourceOfAPrivateHost(t *testing.T) {
	md := s.deploy(t, "default", "private", func(md *v1alpha1.ModelDeployment) {
		md.Spec.Model = v1alpha1.ModelSource{Source: "https://127.0.0.2:1/x.gguf", SHA256: s.remote.sha256}
	})
	message := s.wantCondition(t, md, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonSourceForbidden)
	wantWords(t, message, "loopback", "--allow-source-cidr")
	s.remove(t, md)
}

func (s *suite) tooLarge(t *testing.T) {
	md := s.deploy(t, "default", "huge", source("slow.gguf"), func(md *v1alpha1.ModelDeployment) {
		md.Spec.Context.CacheTokens = 100_000_000 // 4,096 bytes each
	})
	message := s.wantCondition(t, md, v1alpha1.ConditionFits, metav1.ConditionFalse, v1alpha1.ReasonTooLarge)
	wantWords(t, message, small, middle, large, "GiB")
	s.remove(t, md)
}

func (s *suite) nameConflict(t *testing.T) {
	owner := s.deploy(t, "default", "owner", replicas(0), serves("chat"))
	s.wantCondition(t, owner, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	s.namespace(t, "claimant")
	eventually(t, "a later second begins, so that the owner is older", patience, func(context.Context) error {
		if age := time.Since(owner.CreationTimestamp.Time); age < time.Second {
			return fmt.Errorf("it is %s old", age)
		}
		return nil
	})
	late := s.deploy(t, "claimant", "late", replicas(0), serves("chat"))
	message := s.wantCondition(t, late, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonNameConflict)
	wantWords(t, message, "chat", "default/owner")
	s.remove(t, owner)
	s.wantCondition(t, late, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	s.remove(t, late)
}

func serves(names ...string) option {
	return func(md *v1alpha1.ModelDeployment) { md.Spec.ServedNames = names }
}

func (s *suite) download(t *testing.T) {
	md := s.deploy(t, "default", "remote", tokens(slowContext), func(md *v1alpha1.ModelDeployment) {
		md.Spec.Model = v1alpha1.ModelSource{Source: s.remote.url, SHA256: s.remote.sha256}
	})
	s.waitReady(t, "default", "remote", 1)
	if ok, ranges, sent := s.remote.resumed(); !ok || sent > 2*s.remote.size {
		t.Errorf("after the break the server was asked for %q and sent %d bytes of a file of %d: nothing was resumed", ranges, sent, s.remote.size)
	}
	if _, err := s.ask(t.Context(), "remote", false); err != nil {
		t.Error(err)
	}
	s.remove(t, md)
}

func (s *suite) downloadOfAnotherDigest(t *testing.T) {
	md := s.deploy(t, "default", "swapped", func(md *v1alpha1.ModelDeployment) {
		md.Spec.Model = v1alpha1.ModelSource{Source: s.remote.forged, SHA256: strings.Repeat("0", 64)}
	})
	eventually(t, "a condition says DigestMismatch", patience, func(ctx context.Context) error {
		now, err := s.get(ctx, md.Namespace, md.Name)
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
	for _, r := range s.replicasOf(t, "default", "swapped") {
		if r.Status.Memory.FootprintBytes > 0 {
			t.Errorf("replica %s loaded the file", r.Name)
		}
	}
	s.remove(t, md)
}

// folderOfAHub: a repository is looked at once, fetched and served; what its
// branch means later changes nothing.
func (s *suite) folderOfAHub(t *testing.T) {
	publish := func(seed uint64) {
		dir := filepath.Join(t.TempDir(), "model")
		c := slow(seed)
		c.Family = tinymodel.Qwen3
		if err := tinymodel.WriteFolder(dir, c, tinymodel.Layout{Matrices: quant.AffineOf(4, 64, quant.BFloat16), ShardBytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		files := map[string]hubtest.File{}
		names, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			content, err := os.ReadFile(filepath.Join(dir, n.Name()))
			if err != nil {
				t.Fatal(err)
			}
			files[n.Name()] = hubtest.File{Content: content, LFS: strings.HasSuffix(n.Name(), ".safetensors")}
		}
		s.hub.Put("org/tiny", hubtest.Of(files))
	}
	publish(11)
	md := s.deploy(t, "default", "published", tokens(slowContext), func(md *v1alpha1.ModelDeployment) {
		md.Spec.Model = v1alpha1.ModelSource{Source: "hf://org/tiny"}
	})
	s.waitReady(t, "default", "published", 1)
	if _, err := s.ask(t.Context(), "published", false); err != nil {
		t.Error(err)
	}
	before := s.replicasOf(t, "default", "published")
	publish(12) // main moves on, and the old commit is gone with it
	if _, err := s.ask(t.Context(), "published", false); err != nil {
		t.Error(err)
	}
	if after := s.replicasOf(t, "default", "published"); len(before) != 1 || len(after) != 1 || after[0].UID != before[0].UID || len(after[0].Spec.Model.Commit) != 40 {
		t.Errorf("%d and %d replicas, commit %q: want one that stays", len(before), len(after), after[0].Spec.Model.Commit)
	}
	s.remove(t, md)
	missing := s.deploy(t, "default", "unpublished", func(md *v1alpha1.ModelDeployment) {
		md.Spec.Model = v1alpha1.ModelSource{Source: "hf://org/none", Revision: "v1"}
	})
	message := s.wantCondition(t, missing, v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonSourceNotFound)
	wantWords(t, message, "org/none", "token")
	s.remove(t, missing)
}

// encoderOfAHub: a repository of sentence-transformers, with its modules in
// folders, becomes an engine that makes vectors and says so to who wants to chat.
func (s *suite) encoderOfAHub(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "model")
	if err := tinymodel.Readers()[0].Write(dir); err != nil {
		t.Fatal(err)
	}
	files := map[string]hubtest.File{}
	for _, n := range []string{"1_Pooling/config.json", "config.json", "config_sentence_transformers.json", "model.safetensors", "modules.json", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"} {
		content, err := os.ReadFile(filepath.Join(dir, n))
		if err != nil {
			t.Fatal(err)
		}
		files[n] = hubtest.File{Content: content, LFS: strings.HasSuffix(n, ".safetensors")}
	}
	s.hub.Put("org/encoder", hubtest.Of(files))
	md := s.deploy(t, "default", "encoder", tokens(64), func(md *v1alpha1.ModelDeployment) {
		md.Spec.Model = v1alpha1.ModelSource{Source: "hf://org/encoder"}
	})
	s.waitReady(t, "default", "encoder", 1)
	if r := s.replicasOf(t, "default", "encoder"); len(r) != 1 || r[0].Spec.Model.Facts.Task != model.Embed || len(r[0].Spec.Model.Files) != len(files) {
		t.Errorf("%d replicas, of %+v", len(r), r[0].Spec.Model)
	}
	_, err := s.ask(t.Context(), "encoder", false)
	if err == nil {
		t.Error("an encoder chats")
	} else {
		wantWords(t, err.Error(), "400", "computes embeddings", "embeddings")
	}
	s.remove(t, md)
}

// refusedByTheAPI applies what cannot be meant, strictly as kubectl does.
func (s *suite) refusedByTheAPI(t *testing.T) {
	for name, test := range map[string]struct {
		spec map[string]any
		want string
	}{
		"unknown field":          {map[string]any{"model": map[string]any{"source": "file://a.gguf"}, "replica": 1}, "replica"},
		"no tokens":              {map[string]any{"model": map[string]any{"source": "file://a.gguf"}, "context": map[string]any{"tokens": -1}}, "context.tokens"},
		"cache below one length": {map[string]any{"model": map[string]any{"source": "file://a.gguf"}, "context": map[string]any{"tokens": 512, "cacheTokens": 256}}, "one request of maximum length fits"},
		"https without a digest": {map[string]any{"model": map[string]any{"source": "https://example.com/a.gguf"}}, "sha256 is required"},
		"another scheme":         {map[string]any{"model": map[string]any{"source": "ftp://example.com/a.gguf"}}, "must begin with file://"},
		"a digest for a hub":     {map[string]any{"model": map[string]any{"source": "hf://org/model", "sha256": strings.Repeat("0", 64)}}, "sha256 is only valid for file:// and https:// sources"},
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
	asleep := s.deploy(t, "default", "asleep", replicas(0))
	s.wantCondition(t, asleep, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted)
	const message = `"messages":[{"role":"user","content":"hi"}]`
	for name, test := range map[string]struct {
		body   string
		status int
		retry  bool
	}{
		"unknown model":  {`{"model":"nobody",` + message + `}`, http.StatusNotFound, false},
		"no endpoint":    {`{"model":"asleep",` + message + `}`, http.StatusServiceUnavailable, true},
		"malformed JSON": {`{"model":`, http.StatusBadRequest, false},
	} {
		t.Run(name, func(t *testing.T) {
			eventually(t, "the gateway refuses it rightly", patience, func(ctx context.Context) error {
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
