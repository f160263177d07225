//go:build !race

package fleet

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func tenant(namespace, secret, source string) *v1alpha1.ModelDeployment {
	d := &v1alpha1.ModelDeployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "d", UID: "d"}}
	d.Spec.Model = v1alpha1.ModelSource{Source: source}
	if secret != "" {
		d.Spec.Model.SecretRef = &v1alpha1.SecretReference{Name: secret}
	}
	return d
}

// TestAttackATokenOfAnotherNamespace: no choice of names gives one tenant another one's
// token, and sources other than a hub's have none.
func TestAttackATokenOfAnotherNamespace(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range []*v1alpha1.ModelDeployment{
		tenant("a", "hub", "hf://o/m"), tenant("b", "hub", "hf://o/m"), tenant("a", "hub2", "hf://o/m"), tenant("ah", "ub", "hf://o/m"), tenant("", "a.hub", "hf://o/m"),
		tenant("a", "hub", "s3://bucket/m"), tenant("b", "hub", "s3://bucket/m"),
		tenant("a", "hub", "oci://ghcr.io/o/m:1"), tenant("a", "hub", "oci://quay.io/o/m:1"),
	} {
		ref := TokenRef(d)
		if len(ref) != 64 || seen[ref] {
			t.Errorf("%s/%s has ref %q", d.Namespace, d.Spec.Model.SecretRef.Name, ref)
		}
		seen[ref] = true
	}
	for _, d := range []*v1alpha1.ModelDeployment{tenant("a", "", "hf://o/m"), tenant("a", "hub", "https://attacker.example/m.gguf"), tenant("a", "hub", "file:///m.gguf")} {
		if ref := TokenRef(d); ref != "" {
			t.Errorf("%s has ref %q", d.Spec.Model.Source, ref)
		}
	}
}

func TestOrdersNameTheTokenThatTheyNeed(t *testing.T) {
	d := tenant("a", "hub", "hf://o/m")
	replica := func(source string, desired v1alpha1.DesiredState) v1alpha1.ModelReplica {
		r := v1alpha1.ModelReplica{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "r", UID: "r"}}
		r.Spec.NodeName, r.Spec.Desired, r.Spec.DeploymentRef.UID, r.Spec.Model.Source = "m", desired, "d", source
		return r
	}
	for name, c := range map[string]struct {
		replica v1alpha1.ModelReplica
		want    string
	}{
		"running":           {replica: replica("hf://o/m", v1alpha1.DesiredRunning), want: TokenRef(d)},
		"drained":           {replica: replica("hf://o/m", v1alpha1.DesiredDrained)},
		"of another kind":   {replica: replica("s3://bucket/m", v1alpha1.DesiredRunning), want: TokenRef(tenant("a", "hub", "s3://bucket/m"))},
		"of another source": {replica: replica("https://attacker.example/m.gguf", v1alpha1.DesiredRunning)},
	} {
		got := Assignments("m", []v1alpha1.ModelReplica{c.replica}, []v1alpha1.ModelDeployment{*d})
		if len(got) != 1 || got[0].TokenRef != c.want {
			t.Errorf("%s: %+v, want ref %q", name, got, c.want)
		}
	}
	assigned := &v1alpha1.MacAssignment{}
	assigned.Spec.Assignments = []v1alpha1.Assignment{{TokenRef: "b"}, {}}
	assigned.Spec.Inspections = []v1alpha1.Inspection{{TokenRef: "a"}, {TokenRef: "b"}}
	if refs := strings.Join(TokenRefs(assigned), " "); refs != "a b" {
		t.Errorf("refs %q", refs)
	}
}

// TestAttackASecretThatIsNoHubToken: the key "token" of another type of Secret is never
// sent to a hub.
func TestAttackASecretThatIsNoHubToken(t *testing.T) {
	secret := func(kind corev1.SecretType, key, value string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "s"}, Type: kind, Data: map[string][]byte{key: []byte(value)}}
	}
	for name, c := range map[string]struct {
		secret *corev1.Secret
		want   string
	}{
		"a token":                    {secret: secret(corev1.SecretTypeOpaque, "token", "hf_word"), want: "hf_word"},
		"with the end of a line":     {secret: secret("", "token", "hf_word\r\n"), want: "hf_word"},
		"a service account's":        {secret: secret(corev1.SecretTypeServiceAccountToken, "token", "eyJhb")},
		"a bootstrap token":          {secret: secret(corev1.SecretTypeBootstrapToken, "token", "word")},
		"another key":                {secret: secret(corev1.SecretTypeOpaque, "password", "hf_word")},
		"nothing":                    {secret: secret(corev1.SecretTypeOpaque, "token", "\n")},
		"two lines":                  {secret: secret(corev1.SecretTypeOpaque, "token", "hf_word\nhf_other")},
		"a trailing header":          {secret: secret(corev1.SecretTypeOpaque, "token", "hf_word\r\nX-Evil: 1")},
		"with a blank":               {secret: secret(corev1.SecretTypeOpaque, "token", "Bearer hf_word")},
		"no text":                    {secret: secret(corev1.SecretTypeOpaque, "token", "hf_\xff\x00")},
		"what is no token's text":    {secret: secret(corev1.SecretTypeOpaque, "token", "s3:hf_id:secret")},
		"too long to be a hub token": {secret: secret(corev1.SecretTypeOpaque, "token", strings.Repeat("x", maxTokenBytes+1))},
	} {
		got, refusal := Credential(c.secret, "hf://o/m")
		if string(got) != c.want || (refusal == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", name, got, refusal)
		}
		if refusal != nil && (refusal.Reason != v1alpha1.ReasonSecretInvalid || strings.Contains(refusal.Message, "hf_") || strings.Contains(refusal.Message, "eyJ")) {
			t.Errorf("%s: %v", name, refusal)
		}
	}
}

// TestAttackASecretThatIsNoAccessKey: a token is no access key, nor the reverse, and no
// part of one can become another part.
func TestAttackASecretThatIsNoAccessKey(t *testing.T) {
	secret := func(data ...string) *corev1.Secret {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "s"}, Data: map[string][]byte{}}
		for i := 0; i < len(data); i += 2 {
			s.Data[data[i]] = []byte(data[i+1])
		}
		return s
	}
	for name, c := range map[string]struct {
		secret *corev1.Secret
		want   string
	}{
		"a key":                {secret: secret(keyID, "AKIA", keySecret, "se/cr+et\n"), want: "s3:AKIA:se%2Fcr%2Bet"},
		"of a session":         {secret: secret(keyID, "AKIA", keySecret, "x", keySession, "tok=="), want: "s3:AKIA:x:tok%3D%3D"},
		"a colon in a part":    {secret: secret(keyID, "AKIA", keySecret, "x:y"), want: "s3:AKIA:x%3Ay"},
		"a hub's token":        {secret: secret(tokenKey, "hf_word")},
		"an id alone":          {secret: secret(keyID, "AKIA")},
		"a secret alone":       {secret: secret(keySecret, "secret")},
		"an empty part":        {secret: secret(keyID, "AKIA", keySecret, "\n")},
		"a part of two lines":  {secret: secret(keyID, "AKIA\nX", keySecret, "secret")},
		"a session with blank": {secret: secret(keyID, "AKIA", keySecret, "secret", keySession, "a b")},
		"a long session":       {secret: secret(keyID, "AKIA", keySecret, "x", keySession, strings.Repeat("t", 4000)), want: "s3:AKIA:x:" + strings.Repeat("t", 4000)},
		"long once escaped":    {secret: secret(keyID, "AKIA", keySecret, strings.Repeat("%", 2048))},
		"far too long":         {secret: secret(keyID, "AKIA", keySecret, strings.Repeat("s", maxKeyBytes+1))},
	} {
		got, refusal := Credential(c.secret, "s3://bucket/m")
		if string(got) != c.want || (refusal == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", name, got, refusal)
		}
		if refusal != nil && (refusal.Reason != v1alpha1.ReasonSecretInvalid || strings.Contains(refusal.Message, "AKIA") || strings.Contains(refusal.Message, "hf_")) {
			t.Errorf("%s: %v", name, refusal)
		}
	}
	if got, refusal := Credential(secret(keyID, "AKIA", keySecret, "secret"), "hf://o/m"); got != nil || refusal == nil {
		t.Errorf("an access key is sent to a hub: %q", got)
	}
}

// TestAttackAnEndpointThatTheSecretDoesNotName: a tenant's own server could use the signature of a
// request at the endpoint of the Secret, if that takes any Host.
func TestAttackAnEndpointThatTheSecretDoesNotName(t *testing.T) {
	secret := &corev1.Secret{Data: map[string][]byte{keyID: []byte("AKIA"), keySecret: []byte("x")}}
	for _, c := range []struct {
		endpoint, source string
		given            bool
	}{
		{"", "s3://b/m", true},
		{"", "s3://b/m?endpoint=https://any.example", true},
		{"https://minio.example:9000\n", "s3://b/m?region=r&endpoint=https://MinIO.example:9000/", true},
		{"https://minio.example", "s3://b/m?endpoint=https%3A%2F%2Fminio.example:443", true},
		{"https://minio.example", "s3://b/m?endpoint=https://evil.example", false},
		{"https://minio.example", "s3://b/m?endpoint=https://minio.example:9000", false},
		{"https://minio.example", "s3://b/m", false},
		{"minio.example", "s3://b/m", false},
		{"", "s3://b/m", true},
	} {
		delete(secret.Data, keyEndpoint)
		if c.endpoint != "" {
			secret.Data[keyEndpoint] = []byte(c.endpoint)
		}
		if got, refusal := Credential(secret, c.source); (got != nil) != c.given || (refusal == nil) != c.given {
			t.Errorf("a Secret of %q for %s: %q, %v", c.endpoint, c.source, got, refusal)
		}
	}
	evil := "s3://b/m?endpoint=https://evil.example"
	if TokenRef(tenant("a", "hub", "s3://b/m")) == TokenRef(tenant("a", "hub", evil)) || CredentialKind("s3://b/m") == CredentialKind(evil) {
		t.Error("what is given to one endpoint is remembered for another")
	}
}

// Logins for other registries do not leave the Secret.
func TestALoginIsThatOfTheSourcesOwnRegistry(t *testing.T) {
	secret := func(kind corev1.SecretType, config string) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "s"}, Type: kind, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(config)}}
	}
	both := `{"auths":{"ghcr.io":{"username":"us:er","password":"p/w"},"quay.io:8443":{"auth":"cm9ib3Q6c2VjcmV0"},"https://index.docker.io/v1/":{"auth":"aHViOnB3"},"odd.io":{"username":"a b","password":"p"},"token.io":{"auth":"bmFtZTo="}}}`
	docker := corev1.SecretTypeDockerConfigJson
	for name, c := range map[string]struct {
		secret       *corev1.Secret
		source, want string
	}{
		"its own":               {secret: secret(docker, both), source: "oci://ghcr.io/o/m:1", want: "oci:us%3Aer:p%2Fw"},
		"with a port":           {secret: secret(docker, both), source: "oci://quay.io:8443/o/m", want: "oci:robot:secret"},
		"Docker Hub's":          {secret: secret(docker, both), source: "oci://docker.io/o/m", want: "oci:hub:pw"},
		"another port":          {secret: secret(docker, both), source: "oci://quay.io/o/m"},
		"no gateway":            {secret: secret(docker, both), source: "oci://evil.example/o/m"},
		"a name with a blank":   {secret: secret(docker, both), source: "oci://odd.io/o/m"},
		"a name alone":          {secret: secret(docker, both), source: "oci://token.io/o/m"},
		"another kind":          {secret: secret(corev1.SecretTypeOpaque, both), source: "oci://ghcr.io/o/m"},
		"no JSON":               {secret: secret(docker, "{"), source: "oci://ghcr.io/o/m"},
		"nothing":               {secret: secret(docker, "{}"), source: "oci://ghcr.io/o/m"},
		"for a hub it is none":  {secret: secret(docker, both), source: "hf://o/m"},
		"nor is it for buckets": {secret: secret(docker, both), source: "s3://bucket/m"},
	} {
		got, refusal := Credential(c.secret, c.source)
		if string(got) != c.want || (refusal == nil) != (c.want != "") {
			t.Errorf("%s: %q, %v", name, got, refusal)
		}
		if refusal != nil && (refusal.Reason != v1alpha1.ReasonSecretInvalid || strings.Contains(refusal.Message, "p/w") || strings.Contains(refusal.Message, "secret\"")) {
			t.Errorf("%s: %v", name, refusal)
		}
	}
	if CredentialKind("oci://ghcr.io/a/b") == CredentialKind("oci://quay.io/a/b") || CredentialKind("hf://a/b") == CredentialKind("s3://a/b") {
		t.Error("what one source is read with is remembered for another")
	}
}
