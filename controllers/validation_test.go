package controllers_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers"
)

// schema is the API server without an operator, and a namespace.
type schema struct {
	t   *testing.T
	ctx context.Context
	c   client.Client
	ns  string
}

func newSchema(t *testing.T) *schema {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testLimit)
	t.Cleanup(cancel)
	// Unknown fields are refused, as kubectl asks for.
	c, err := client.New(env.Config(), client.Options{Scheme: controllers.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "schema-"}}
	if err := c.Create(ctx, ns); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Delete(context.Background(), ns) })
	return &schema{t: t, ctx: ctx, c: client.WithFieldValidation(c, metav1.FieldValidationStrict), ns: ns.Name}
}

// object parses YAML as a user writes it; NS is replaced by the namespace.
func (s *schema) object(text string) *unstructured.Unstructured {
	s.t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(strings.ReplaceAll(text, "NS", s.ns)), &u.Object); err != nil {
		s.t.Fatalf("%v in\n%s", err, text)
	}
	return u
}

// want checks that the API server accepts an object, or rejects it with a message.
func (s *schema) want(err error, sentence string) {
	s.t.Helper()
	switch {
	case sentence == "" && err != nil:
		s.t.Errorf("refused: %v", err)
	case sentence != "" && err == nil:
		s.t.Error("accepted")
	case sentence != "" && (!apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), sentence)):
		s.t.Errorf("refused with %v, want %q", err, sentence)
	}
}

const sha = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func TestDeploymentSchema(t *testing.T) {
	s := newSchema(t)
	long := strings.Repeat("x", 53)
	for name, tc := range map[string]struct{ spec, name, sentence string }{
		"a file":                          {spec: "model: {source: 'file://a/b.gguf'}"},
		"an affinity":                     {spec: "model: {source: 'file://a'}\n  placement: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: example.com/room, operator: In, values: [a, b-1]}, {key: age, operator: Gt, values: ['-3']}]}, {matchFields: [{key: metadata.name, operator: NotIn, values: [studio]}]}]}, preferredDuringSchedulingIgnoredDuringExecution: [{weight: 5, preference: {matchExpressions: [{key: room, operator: Exists}]}}]}}}"},
		"an empty term":                   {spec: "model: {source: 'file://a'}\n  placement: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{}]}}}}", sentence: "an empty term matches nothing"},
		"In without values":               {spec: "model: {source: 'file://a'}\n  placement: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: room, operator: In}]}]}}}}", sentence: "operators In and NotIn require values"},
		"Exists with values":              {spec: "model: {source: 'file://a'}\n  placement: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: room, operator: Exists, values: [a]}]}]}}}}", sentence: "operators Exists and DoesNotExist take no values"},
		"Gt with a word":                  {spec: "model: {source: 'file://a'}\n  placement: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: room, operator: Gt, values: [a]}]}]}}}}", sentence: "operators Gt and Lt require exactly one value, an integer"},
		"a field of another name":         {spec: "model: {source: 'file://a'}\n  placement: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchFields: [{key: spec.name, operator: In, values: [a]}]}]}}}}", sentence: "matchFields supports only the key metadata.name"},
		"a key that is no label":          {spec: "model: {source: 'file://a'}\n  placement: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: 'a b', operator: Exists}]}]}}}}", sentence: "key must be a label name"},
		"a value that no label has":       {spec: "model: {source: 'file://a'}\n  placement: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In, values: ['a b']}]}]}}}}", sentence: "a value must be a valid label value"},
		"a value that begins with a dash": {spec: "model: {source: 'file://a'}\n  placement: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In, values: [a, '-1']}]}]}}}}", sentence: "label values, which do not begin with a dash"},
		"a value to exclude with a dash":  {spec: "model: {source: 'file://a'}\n  placement: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: NotIn, values: ['-1']}]}]}}}}", sentence: "label values, which do not begin with a dash"},
		"a prefix with an empty part":     {spec: "model: {source: 'file://a'}\n  placement: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a..b/x, operator: Exists}]}]}}}}", sentence: "key must be a label name"},
		"a prefix with a dash at an end":  {spec: "model: {source: 'file://a'}\n  placement: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a-.b/x, operator: Exists}]}]}}}}", sentence: "key must be a label name"},
		"a long prefix":                   {spec: strings.Replace("model: {source: 'file://a'}\n  placement: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: PREFIX/x, operator: Exists}]}]}}}}", "PREFIX", strings.Repeat("p.", 127)+"p", 1), sentence: "key must be a label name"},
		"the longest prefix":              {spec: strings.Replace("model: {source: 'file://a'}\n  placement: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: PREFIX/x, operator: Exists}]}]}}}}", "PREFIX", strings.Repeat("p.", 126)+"p", 1)},
		"a spread":                        {spec: "model: {source: 'file://a'}\n  placement: {strategy: BinPack, topologySpreadConstraints: [{topologyKey: room}, {topologyKey: power, maxSkew: 2, whenUnsatisfiable: ScheduleAnyway}]}"},
		"a spread without a limit":        {spec: "model: {source: 'file://a'}\n  placement: {topologySpreadConstraints: [{topologyKey: room, maxSkew: 0}]}", sentence: "should be greater than or equal to 1"},
		"a long value to select":          {spec: "model: {source: 'file://a'}\n  placement: {nodeSelector: {room: " + strings.Repeat("x", 64) + "}}", sentence: "a key of placement.nodeSelector has at most 317 characters, and a value at most 63"},
		"a long key to select":            {spec: "model: {source: 'file://a'}\n  placement: {nodeSelector: {" + strings.Repeat("x", 318) + ": a}}", sentence: "a key of placement.nodeSelector has at most 317 characters, and a value at most 63"},
		"another strategy":                {spec: "model: {source: 'file://a'}\n  placement: {strategy: Random}", sentence: "supported values"},
		"a priority class":                {spec: "model: {source: 'file://a'}\n  priorityClassName: high.example"},
		"no name of a priority class":     {spec: "model: {source: 'file://a'}\n  priorityClassName: High", sentence: "priorityClassName must be the name of a PriorityClass"},
		"a download with its digest":      {spec: "model: {source: 'https://h/m.gguf', sha256: " + sha + "}"},
		"a download without a digest":     {spec: "model: {source: 'https://h/m.gguf'}", sentence: "model.sha256 is required for an https:// source"},
		"plain http":                      {spec: "model: {source: 'http://host/m.gguf'}", sentence: "source must begin with file://"},
		"a hub":                           {spec: "model: {source: 'hf://org/model', revision: refs/pr/1, files: ['*Q8_0.gguf']}"},
		"a hub with a digest":             {spec: "model: {source: 'hf://org/model', sha256: " + sha + "}", sentence: "sha256 is only valid for file:// and https:// sources"},
		"a token of a hub":                {spec: "model: {source: 'hf://org/model', secretRef: {name: hub.token}}"},
		"a token for another host":        {spec: "model: {source: 'https://h.example/m.gguf', sha256: " + sha + ", secretRef: {name: hub}}", sentence: "secretRef is only valid for hf://, s3:// and oci:// sources"},
		"a token for a file":              {spec: "model: {source: 'file://a.gguf', secretRef: {name: hub}}", sentence: "secretRef is only valid for hf://, s3:// and oci:// sources"},
		"a bucket":                        {spec: "model: {source: 's3://bucket/m?endpoint=https://o.example&region=a', files: ['*Q8_0.gguf'], secretRef: {name: keys}}"},
		"a bucket with a digest":          {spec: "model: {source: 's3://bucket/m', sha256: " + sha + "}", sentence: "sha256 is only valid for file:// and https:// sources"},
		"a bucket with a revision":        {spec: "model: {source: 's3://bucket/m', revision: main}", sentence: "revision is only valid for hf:// sources"},
		"an artifact":                     {spec: "model: {source: 'oci://ghcr.io/org/m:q4', files: ['*Q8_0.gguf'], secretRef: {name: login}}"},
		"patterns for one file":           {spec: "model: {source: 'https://h.example/m.gguf', sha256: " + sha + ", files: ['a']}", sentence: "files is only valid for hf://, s3:// and oci:// sources"},
		"a Secret of another namespace":   {spec: "model: {source: 'hf://org/model', secretRef: {name: other/hub}}", sentence: "secretRef.name must be the name of a Secret in this namespace"},
		"patterns of files":               {spec: "model: {source: 'hf://org/model', files: ['*Q8_0.gguf', '4bit/*', 'a[0-9]?.gguf', 'x[^a]y']}"},
		"a pattern without its end":       {spec: "model: {source: 'hf://org/model', files: ['a\\b']}", sentence: "must be a relative path or a file name"},
		"a pattern that escapes":          {spec: "model: {source: 'hf://org/model', files: ['a\\b']}", sentence: "must be a relative path or a file name"},
		"a pattern that leaves":           {spec: "model: {source: 'hf://org/model', files: ['../*']}", sentence: "must be a relative path or a file name"},
		"a pattern from the root":         {spec: "model: {source: 'hf://org/model', files: ['/etc/*']}", sentence: "must be a relative path or a file name"},
		"a revision of no hub":            {spec: "model: {source: 'file://a.gguf', revision: main}", sentence: "revision is only valid for hf:// sources"},
		"a revision that is an option":    {spec: "model: {source: 'hf://org/model', revision: '-rf'}", sentence: "revision must be a branch"},
		"a bucket of another cloud":       {spec: "model: {source: 'gs://org/model'}", sentence: "source must begin with file://"},
		"spaces in a source":              {spec: "model: {source: 'file://a b.gguf'}", sentence: "must not contain spaces"},
		"a line break in a source":        {spec: `model: {source: "file://a\nb.gguf"}`, sentence: "must not contain spaces"},
		"no source":                       {spec: "model: {}", sentence: "model must have exactly one of huggingFace, s3, oci, https, local and source"},
		"two sources":                     {spec: "model: {source: 'file://a.gguf', local: {path: a.gguf}}", sentence: "model must have exactly one of"},
		"a hub of fields":                 {spec: "model: {huggingFace: {repo: org/model, revision: v2/a, files: ['*Q8_0.gguf']}, secretRef: {name: hub}}"},
		"a repository without an owner":   {spec: "model: {huggingFace: {repo: model}}", sentence: "repo must be OWNER/NAME"},
		"a repository with a revision":    {spec: "model: {huggingFace: {repo: 'org/model@refs%2Fpr%2F1'}}", sentence: "repo must be OWNER/NAME"},
		"a revision next to the fields":   {spec: "model: {huggingFace: {repo: org/model}, revision: v2}", sentence: "revision is only valid for hf:// sources"},
		"a bucket of fields":              {spec: "model: {s3: {bucket: models, prefix: a/b/, endpoint: 'https://minio.example:9000', region: eu-west-1, files: ['*.gguf']}, secretRef: {name: keys}}"},
		"a prefix that leaves":            {spec: "model: {s3: {bucket: models, prefix: a/../b}}", sentence: "prefix must be a path"},
		"a prefix with parameters":        {spec: "model: {s3: {bucket: models, prefix: 'a?endpoint=https://evil.example'}}", sentence: "prefix must be a path"},
		"an endpoint with parameters":     {spec: "model: {s3: {bucket: models, endpoint: 'https://minio.example?x'}}", sentence: "endpoint must be https://HOST"},
		"an artifact of fields":           {spec: "model: {oci: {reference: 'ghcr.io/org/m:q4', files: ['*.gguf']}, secretRef: {name: login}}"},
		"an artifact without a tag":       {spec: "model: {oci: {reference: ghcr.io/org/m}}", sentence: "reference must be REGISTRY/REPOSITORY:TAG"},
		"a download of fields":            {spec: "model: {https: {url: 'https://h/m.gguf', sha256: " + sha + "}}"},
		"no digest of a download":         {spec: "model: {https: {url: 'https://h/m.gguf'}}", sentence: "Required value"},
		"a download by plain http":        {spec: "model: {https: {url: 'http://host/m.gguf', sha256: " + sha + "}}", sentence: "url must begin with https://"},
		"a token for a download":          {spec: "model: {https: {url: 'https://h/m.gguf', sha256: " + sha + "}, secretRef: {name: hub}}", sentence: "secretRef is only valid for hf://, s3:// and oci:// sources"},
		"a file of fields":                {spec: "model: {local: {path: team-a/m.gguf, sha256: " + sha + "}}"},
		"a path that leaves":              {spec: "model: {local: {path: team-a/../m.gguf}}", sentence: "path must be relative to the model root"},
		"a path from the root":            {spec: "model: {local: {path: /etc/m.gguf}}", sentence: "path must be relative to the model root"},
		"no model":                        {spec: "replicas: 1", sentence: "Required value"},
		"a digest in capitals":            {spec: "model: {source: 'file://a.gguf', sha256: " + strings.ToUpper(sha) + "}", sentence: "64 lower-case hex digits"},
		"a short digest":                  {spec: "model: {source: 'file://a.gguf', sha256: abc}", sentence: "64"},
		"an unknown field":                {spec: "model: {source: 'file://a.gguf'}\n  replica: 2", sentence: `unknown field "spec.replica"`},
		"a name of 52":                    {spec: "model: {source: 'file://a.gguf'}", name: long[:52]},
		"a name of 53":                    {spec: "model: {source: 'file://a.gguf'}", name: long, sentence: "at most 52 characters"},
		"served names":                    {spec: "model: {source: 'file://a.gguf'}\n  servedNames: [smollm2, 'qwen3:8b', Llama-3.1_8B, Qwen/Qwen3-8B, mlx-community/a]"},
		"a served name with a path":       {spec: "model: {source: 'file://a.gguf'}\n  servedNames: [a/b/c]", sentence: "servedNames"},
		"a served name of one slash":      {spec: "model: {source: 'file://a.gguf'}\n  servedNames: [a/]", sentence: "servedNames"},
		"a served name twice":             {spec: "model: {source: 'file://a.gguf'}\n  servedNames: [a, a]", sentence: "Duplicate value"},
		"adapters":                        {spec: "model: {source: 'hf://a/b'}\n  servedNames: ['qwen3:8b']\n  adapters: [{name: sql, source: 'hf://a/sql', revision: v1}, {name: A.b_c-1, source: 's3://b/c?endpoint=https://h'}, {name: x, source: 'oci://h/r:t'}]"},
		"adapters on this Mac":            {spec: "model: {source: 'file://a'}\n  adapters: [{name: sql, source: 'file://sql'}]"},
		"adapters on this Mac, local":     {spec: "model: {local: {path: a}}\n  adapters: [{name: sql, source: 'file://sql'}]"},
		"a local adapter of a hub":        {spec: "model: {source: 'hf://a/b'}\n  adapters: [{name: sql, source: 'file://sql'}]", sentence: "an adapter with a file:// source needs a model with one"},
		"an adapter twice":                {spec: "model: {source: 'hf://a/b'}\n  adapters: [{name: sql, source: 'hf://a/sql'}, {name: sql, source: 'hf://a/b'}]", sentence: "Duplicate value"},
		"an adapter's name as served":     {spec: "model: {source: 'hf://a/b'}\n  servedNames: ['x:sql']\n  adapters: [{name: sql, source: 'hf://a/sql'}]", sentence: "servedNames must not end in :ADAPTER"},
		"an adapter with a colon":         {spec: "model: {source: 'hf://a/b'}\n  adapters: [{name: 'a:b', source: 'hf://a/sql'}]", sentence: "should match"},
		"an adapter of a web server":      {spec: "model: {source: 'hf://a/b'}\n  adapters: [{name: a, source: 'https://a/sql'}]", sentence: "should match"},
		"seventeen adapters":              {spec: "model: {source: 'hf://a/b'}\n  adapters: [" + strings.Repeat("{name: a, source: 'hf://a/sql'}, ", 17) + "]", sentence: "at most 16"},
		"nine served names":               {spec: "model: {source: 'file://a.gguf'}\n  servedNames: [a, b, c, d, e, f, g, h, i]", sentence: "at most 8"},
		"no replica":                      {spec: "model: {source: 'file://a.gguf'}\n  replicas: 0"},
		"fewer than none":                 {spec: "model: {source: 'file://a.gguf'}\n  replicas: -1", sentence: "greater than or equal to 0"},
		"more than the bound":             {spec: "model: {source: 'file://a.gguf'}\n  replicas: 1001", sentence: "less than or equal to 1000"},
		"autoscaling":                     {spec: "model: {source: 'file://a.gguf'}\n  autoscaling: {maxReplicas: 4}"},
		"autoscaling, all of it":          {spec: "model: {source: 'file://a.gguf'}\n  autoscaling: {minReplicas: 0, maxReplicas: 4, targetConcurrency: 8, maxQueueSeconds: 0, scaleUpDelaySeconds: 5, scaleDownDelaySeconds: 0, scaleToZeroDelaySeconds: 60}"},
		"autoscaling without a most":      {spec: "model: {source: 'file://a.gguf'}\n  autoscaling: {minReplicas: 1}", sentence: "autoscaling.maxReplicas"},
		"autoscaling to none at most":     {spec: "model: {source: 'file://a.gguf'}\n  autoscaling: {maxReplicas: 0}", sentence: "greater than or equal to 1"},
		"a least above the most":          {spec: "model: {source: 'file://a.gguf'}\n  autoscaling: {minReplicas: 3, maxReplicas: 2}", sentence: "autoscaling.minReplicas must not exceed autoscaling.maxReplicas"},
		"replicas and autoscaling":        {spec: "model: {source: 'file://a.gguf'}\n  replicas: 2\n  autoscaling: {maxReplicas: 4}", sentence: "replicas and autoscaling are mutually exclusive"},
		"none and autoscaling":            {spec: "model: {source: 'file://a.gguf'}\n  replicas: 0\n  autoscaling: {minReplicas: 0, maxReplicas: 4}", sentence: "replicas and autoscaling are mutually exclusive"},
		"an idle time and a last one":     {spec: "model: {source: 'file://a.gguf'}\n  autoscaling: {maxReplicas: 4, scaleToZeroDelaySeconds: 60}", sentence: "autoscaling.scaleToZeroDelaySeconds requires autoscaling.minReplicas 0"},
		"cache tokens as tokens":          {spec: "model: {source: 'file://a.gguf'}\n  context: {maxTokens: 64, kvCacheTokens: 64}"},
		"cache tokens below tokens":       {spec: "model: {source: 'file://a.gguf'}\n  context: {maxTokens: 64, kvCacheTokens: 63}", sentence: "context.kvCacheTokens must be at least context.maxTokens"},
		"a context of one token":          {spec: "model: {source: 'file://a.gguf'}\n  context: {maxTokens: 1}", sentence: "greater than or equal to 16"},
		"too many sequences":              {spec: "model: {source: 'file://a.gguf'}\n  context: {maxConcurrentRequests: 257}", sentence: "less than or equal to 256"},
		"a cache on disk":                 {spec: "model: {source: 'file://a.gguf'}\n  prefixCache: {diskLimit: 64Mi}"},
		"a cache too small":               {spec: "model: {source: 'file://a.gguf'}\n  prefixCache: {diskLimit: 63Mi}", sentence: "prefixCache.diskLimit must be from 64Mi to 1Pi"},
		"a cache too large":               {spec: "model: {source: 'file://a.gguf'}\n  prefixCache: {diskLimit: 1025Ti}", sentence: "prefixCache.diskLimit must be from 64Mi to 1Pi"},
		"a memory limit":                  {spec: "model: {source: 'file://a.gguf'}\n  memory: {limit: 8Gi}"},
		"a memory limit of zero":          {spec: "model: {source: 'file://a.gguf'}\n  memory: {limit: '0'}", sentence: "memory.limit must be greater than zero"},
		"a memory limit below zero":       {spec: "model: {source: 'file://a.gguf'}\n  memory: {limit: '-1Gi'}", sentence: "memory.limit must be greater than zero"},
		"a memory limit that is a word":   {spec: "model: {source: 'file://a.gguf'}\n  memory: {limit: lots}", sentence: "memory.limit"},
		"on demand":                       {spec: "model: {source: 'file://a.gguf'}\n  residency: {policy: OnDemand, idleSeconds: 30, evictionPriority: -5}"},
		"on demand for ever":              {spec: "model: {source: 'file://a.gguf'}\n  residency: {policy: OnDemand, idleSeconds: 0}"},
		"always":                          {spec: "model: {source: 'file://a.gguf'}\n  residency: {policy: Always}"},
		"an unknown residency":            {spec: "model: {source: 'file://a.gguf'}\n  residency: {policy: Sometimes}", sentence: "Unsupported value"},
		"always, but idle":                {spec: "model: {source: 'file://a.gguf'}\n  residency: {policy: Always, idleSeconds: 30}", sentence: "residency.idleSeconds requires residency.policy OnDemand"},
		"idle without a policy":           {spec: "model: {source: 'file://a.gguf'}\n  residency: {idleSeconds: 0}", sentence: "residency.idleSeconds requires residency.policy OnDemand"},
		"always, with a priority":         {spec: "model: {source: 'file://a.gguf'}\n  residency: {policy: Always, evictionPriority: 1}", sentence: "residency.evictionPriority requires residency.policy OnDemand"},
		"a priority without a policy":     {spec: "model: {source: 'file://a.gguf'}\n  residency: {evictionPriority: -1}", sentence: "residency.evictionPriority requires residency.policy OnDemand"},
		"an idle time below zero":         {spec: "model: {source: 'file://a.gguf'}\n  residency: {policy: OnDemand, idleSeconds: -1}", sentence: "greater than or equal to 0"},
		"an idle time of two months":      {spec: "model: {source: 'file://a.gguf'}\n  residency: {policy: OnDemand, idleSeconds: 5184000}", sentence: "less than or equal to 2592000"},
		"a priority beyond the bounds":    {spec: "model: {source: 'file://a.gguf'}\n  residency: {policy: OnDemand, evictionPriority: 1001}", sentence: "less than or equal to 1000"},
		"swap":                            {spec: "model: {source: 'file://a.gguf'}\n  rollout: {maxSurge: 0, maxUnavailable: 1}"},
		"no way to roll out":              {spec: "model: {source: 'file://a.gguf'}\n  rollout: {maxSurge: 0, maxUnavailable: 0}", sentence: "must not both be zero"},
		"shares of the replicas":          {spec: "model: {source: 'file://a.gguf'}\n  rollout: {maxSurge: 150%, maxUnavailable: 25%}"},
		"no way to roll out, in shares":   {spec: "model: {source: 'file://a.gguf'}\n  rollout: {maxSurge: 0%, maxUnavailable: 0}", sentence: "must not both be zero"},
		"a share without its sign":        {spec: "model: {source: 'file://a.gguf'}\n  rollout: {maxSurge: '25'}", sentence: "a percentage from 0% to 1000%"},
		"more than all missing":           {spec: "model: {source: 'file://a.gguf'}\n  rollout: {maxUnavailable: 101%}", sentence: "a percentage from 0% to 100%"},
		"fewer than none missing":         {spec: "model: {source: 'file://a.gguf'}\n  rollout: {maxUnavailable: -1}", sentence: "a number from 0 to 1000"},
		"no surge alone":                  {spec: "model: {source: 'file://a.gguf'}\n  rollout: {maxSurge: 0}", sentence: "must not both be zero"},
		"a drain of two days":             {spec: "model: {source: 'file://a.gguf'}\n  rollout: {drainSeconds: 172800}", sentence: "less than or equal to 86400"},
		"placement":                       {spec: "model: {source: 'file://a.gguf'}\n  placement: {nodeSelector: {room: a}, chips: [M2Ultra], tolerations: [{key: desk, operator: Exists}]}"},
		"a chip without a name":           {spec: "model: {source: 'file://a.gguf'}\n  placement: {chips: ['']}", sentence: "chips"},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *s
			sub.t = t
			if tc.name == "" {
				tc.name = "d"
			}
			u := sub.object("apiVersion: metalfleet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {namespace: NS, name: " + tc.name + "}\nspec:\n  " + tc.spec)
			sub.want(sub.c.Create(sub.ctx, u, client.DryRunAll), tc.sentence)
		})
	}
}

func TestDeploymentDefaults(t *testing.T) {
	s := newSchema(t)
	u := s.object("apiVersion: metalfleet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {namespace: NS, name: d}\nspec: {model: {source: 'file://a.gguf'}}")
	s.want(s.c.Create(s.ctx, u, client.DryRunAll), "")
	if n, _, _ := unstructured.NestedInt64(u.Object, "spec", "replicas"); n != 1 {
		t.Errorf("replicas default to %d, want 1", n)
	}
}

func TestMacNodeSchema(t *testing.T) {
	s := newSchema(t)
	for name, tc := range map[string]struct{ name, spec, sentence string }{
		"a Mac":                {"mac-studio-1", "{}", ""},
		"a name of 52":         {strings.Repeat("m", 52), "{}", ""},
		"a name of 53":         {strings.Repeat("m", 53), "{}", "metadata.name must be a DNS label of at most 52 characters"},
		"a name with dots":     {"mac.local", "{}", "metadata.name must be a DNS label"},
		"pinned weights":       {"pins", "{pinnedWeights: ['sha256:" + strings.Repeat("a", 64) + "']}", ""},
		"pinned by a name":     {"pins-name", "{pinnedWeights: [qwen]}", "should match"},
		"a policy":             {"m", "{memory: {policy: Safe, ceiling: 96Gi}}", ""},
		"an unknown policy":    {"m", "{memory: {policy: Reckless}}", "Unsupported value"},
		"a ceiling of zero":    {"m", "{memory: {ceiling: '0'}}", "memory.ceiling must be greater than zero"},
		"a ceiling below zero": {"m", "{memory: {ceiling: '-5Gi'}}", "memory.ceiling must be greater than zero"},
		"an unknown field":     {"m", "{memory: {cieling: 1Gi}}", "unknown field"},
		"an assignment":        {"m", "{assignments: []}", "unknown field"},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *s
			sub.t = t
			u := sub.object(fmt.Sprintf("apiVersion: metalfleet.dev/v1alpha1\nkind: MacNode\nmetadata: {name: %s}\nspec: %s", tc.name, tc.spec))
			sub.want(sub.c.Create(sub.ctx, u, client.DryRunAll), tc.sentence)
		})
	}
}

func TestMacAssignmentSchema(t *testing.T) {
	s := newSchema(t)
	operator, err := client.New(asOperator(), client.Options{Scheme: controllers.Scheme()}) // only it may write assignments
	if err != nil {
		t.Fatal(err)
	}
	s.c = client.WithFieldValidation(operator, metav1.FieldValidationStrict)
	for name, tc := range map[string]struct{ spec, sentence string }{
		"nothing":                     {"{}", ""},
		"an assignment without epoch": {"{assignments: [{replicaUID: u, namespace: n, name: r}]}", "Required value"},
		"an inspection without id":    {"{inspections: [{source: 'file://a'}]}", "Required value"},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *s
			sub.t = t
			u := sub.object("apiVersion: metalfleet.dev/v1alpha1\nkind: MacAssignment\nmetadata: {name: m}\nspec: " + tc.spec)
			sub.want(sub.c.Create(sub.ctx, u, client.DryRunAll), tc.sentence)
		})
	}
}

func TestReplicaSchema(t *testing.T) {
	s := newSchema(t)
	operator, err := client.New(asOperator(), client.Options{Scheme: controllers.Scheme()}) // only it may write replicas
	if err != nil {
		t.Fatal(err)
	}
	s.c = client.WithFieldValidation(operator, metav1.FieldValidationStrict)
	make := func(name, mac string) *v1alpha1.ModelReplica {
		r := &v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: name}}
		r.Spec = v1alpha1.ModelReplicaSpec{DeploymentRef: v1alpha1.DeploymentReference{Name: "d", UID: "u"}, Revision: "d-1", Epoch: 1, Model: small,
			Context: v1alpha1.ContextLimits{MaxTokens: 64, MaxConcurrentRequests: 1, KVCacheTokens: 64}, ReservedBytes: 1, Desired: v1alpha1.DesiredRunning, NodeName: mac}
		return r
	}
	for name, tc := range map[string]struct {
		mac      string
		change   func(*v1alpha1.ModelReplicaSpec)
		sentence string
	}{
		"binding":        {"", func(r *v1alpha1.ModelReplicaSpec) { r.NodeName = "mac-1" }, ""},
		"binding again":  {"mac-1", func(r *v1alpha1.ModelReplicaSpec) { r.NodeName = "mac-2" }, "nodeName cannot be changed"},
		"unbinding":      {"mac-1", func(r *v1alpha1.ModelReplicaSpec) { r.NodeName = "" }, "nodeName cannot be changed"},
		"draining":       {"mac-1", func(r *v1alpha1.ModelReplicaSpec) { r.Desired = v1alpha1.DesiredDrained }, ""},
		"a longer drain": {"mac-1", func(r *v1alpha1.ModelReplicaSpec) { r.DrainSeconds = 9 }, ""},
		"on demand from now": {"mac-1", func(r *v1alpha1.ModelReplicaSpec) {
			r.Residency = v1alpha1.Residency{Policy: v1alpha1.ResidencyOnDemand, IdleSeconds: 600}
		}, ""},
		"an unknown residency": {"mac-1", func(r *v1alpha1.ModelReplicaSpec) { r.Residency.Policy = "Sometimes" }, "Unsupported value"},
		"another placement":    {"", func(r *v1alpha1.ModelReplicaSpec) { r.Placement.Chips = []string{"M4"} }, ""},
		"another epoch":        {"mac-1", func(r *v1alpha1.ModelReplicaSpec) { r.Epoch = 2 }, "are immutable"},
		"another revision":     {"mac-1", func(r *v1alpha1.ModelReplicaSpec) { r.Revision = "d-2" }, "are immutable"},
		"another model":        {"mac-1", func(r *v1alpha1.ModelReplicaSpec) { r.Model.Files[0].Bytes++ }, "are immutable"},
		"another context":      {"mac-1", func(r *v1alpha1.ModelReplicaSpec) { r.Context.MaxTokens = 65 }, "are immutable"},
		"another reservation":  {"mac-1", func(r *v1alpha1.ModelReplicaSpec) { r.ReservedBytes = 2 }, "are immutable"},
		"an unknown state":     {"mac-1", func(r *v1alpha1.ModelReplicaSpec) { r.Desired = "Paused" }, "Unsupported value"},
	} {
		t.Run(name, func(t *testing.T) {
			sub := *s
			sub.t = t
			r := make(strings.ReplaceAll(name, " ", "-"), tc.mac).DeepCopy()
			if err := sub.c.Create(sub.ctx, r); err != nil {
				t.Fatal(err)
			}
			before := r.DeepCopy()
			tc.change(&r.Spec)
			sub.want(sub.c.Patch(sub.ctx, r, client.MergeFrom(before)), tc.sentence)
			_ = sub.c.Delete(sub.ctx, r)
		})
	}
	bad := make("zero", "")
	bad.Spec.Epoch = 0
	s.want(s.c.Create(s.ctx, bad), "greater than or equal to 1")
}

// The scale subresource serves HPA and KEDA as well as kubectl scale.
func TestScaleSubresource(t *testing.T) {
	s := newSchema(t)
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "d"}, Spec: v1alpha1.ModelDeploymentSpec{Model: v1alpha1.ModelSource{Source: source}}}
	s.want(s.c.Create(s.ctx, d), "")
	scale := s.object("apiVersion: autoscaling/v1\nkind: Scale\nmetadata: {namespace: NS, name: d}\nspec: {replicas: 3}")
	s.want(s.c.SubResource("scale").Update(s.ctx, d, client.WithSubResourceBody(scale)), "")
	s.want(s.c.Get(s.ctx, client.ObjectKeyFromObject(d), d), "")
	if d.Spec.Replicas == nil || *d.Spec.Replicas != 3 {
		t.Errorf("replicas %v after scaling to 3", d.Spec.Replicas)
	}
	// Another scaler and the autoscaler would fight each other.
	scaled := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "scaled"},
		Spec: v1alpha1.ModelDeploymentSpec{Model: v1alpha1.ModelSource{Source: source}, Autoscaling: &v1alpha1.AutoscalingSpec{MaxReplicas: 4}}}
	s.want(s.c.Create(s.ctx, scaled), "")
	scale = s.object("apiVersion: autoscaling/v1\nkind: Scale\nmetadata: {namespace: NS, name: scaled}\nspec: {replicas: 3}")
	s.want(s.c.SubResource("scale").Update(s.ctx, scaled, client.WithSubResourceBody(scale)), "replicas and autoscaling are mutually exclusive")
	_ = s.c.Delete(s.ctx, scaled)
	_ = s.c.Delete(s.ctx, d)
}

// Our samples are valid as they are.
func TestSamplesAreValid(t *testing.T) {
	s := newSchema(t)
	files, err := filepath.Glob("../config/samples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("config/samples holds no files (%v)", err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for doc := range strings.SplitSeq(string(raw), "\n---\n") {
			u := &unstructured.Unstructured{}
			if err := yaml.UnmarshalStrict([]byte(doc), &u.Object); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			if err := s.c.Create(s.ctx, u, client.DryRunAll); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
}
