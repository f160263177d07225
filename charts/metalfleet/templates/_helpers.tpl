{{/* Begins the names of objects that neither the programs nor the policies look up. */}}
{{- define "metalfleet.fullname" -}}
{{ .Values.fullnameOverride | default "metalfleet" }}
{{- end }}

{{/* Image of a program: (dict "root" $ "name" "operator"). A release sets appVersion to the tag of images that it published. */}}
{{- define "metalfleet.image" -}}
{{- $image := .root.Values.image }}
{{- with get $image.digest .name }}
{{- $image.registry }}/{{ $.name }}@{{ . }}
{{- else }}
{{- if and (not $image.tag) (eq .root.Chart.AppVersion "unreleased") }}
{{- fail "image.tag is empty, and this chart is not of a release, so its images do not exist until you build them. Build and push both images (docs/how-to/install.md), then set image.registry and image.tag, or image.digest" }}
{{- end }}
{{- $image.registry }}/{{ .name }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* Labels that select the Pods of a program. */}}
{{- define "metalfleet.selector" -}}
app.kubernetes.io/name: metalfleet
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
{{- end }}

{{/* Labels of all objects of a program. */}}
{{- define "metalfleet.labels" -}}
{{ include "metalfleet.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: metalfleet
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{/* Metadata of the Pods of a program: (dict "root" $ "name" "gateway" "values" .Values.gateway). */}}
{{- define "metalfleet.podMetadata" -}}
labels:
  {{- include "metalfleet.labels" . | nindent 2 }}
  {{- with .values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The ServiceAccount of a program. Admission policies name it, so that it keeps its name. */}}
{{- define "metalfleet.serviceAccount" -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: metalfleet-{{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "metalfleet.labels" . | nindent 4 }}
  {{- with .values.serviceAccount.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* Environment and mounts of the container of a program. */}}
{{- define "metalfleet.extras" -}}
{{- with .values.extraEnv }}
env: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .values.extraVolumeMounts }}
volumeMounts: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* The PodDisruptionBudget of a program. */}}
{{- define "metalfleet.disruptionBudget" -}}
{{- if .values.podDisruptionBudget.enabled }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "metalfleet.fullname" .root }}-{{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "metalfleet.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .values.podDisruptionBudget.maxUnavailable }}
  selector:
    matchLabels: {{- include "metalfleet.selector" . | nindent 6 }}
{{- end }}
{{- end }}

{{/* Load balancer fields of a Service: its values. */}}
{{- define "metalfleet.loadBalancer" -}}
{{- if eq .type "LoadBalancer" }}
{{- with .loadBalancerClass }}
loadBalancerClass: {{ . }}
{{- end }}
{{- with .loadBalancerSourceRanges }}
loadBalancerSourceRanges: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Pod security context for the restricted Pod Security Standard. */}}
{{- define "metalfleet.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Container security context for the same standard. */}}
{{- define "metalfleet.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Scheduling of the Pods of a program: (dict "root" $ "name" "gateway" "values" .Values.gateway). */}}
{{- define "metalfleet.scheduling" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 0 }}
{{- else }}
topologySpreadConstraints:
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "metalfleet.selector" . | nindent 6 }}
{{- end }}
{{- with .values.extraVolumes }}
volumes: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}

{{/* Those of a list of rules that are of resources in namespaces, or the others: (dict "rules" $list "ofNamespaces" true). */}}
{{- define "metalfleet.rules" -}}
{{- $out := list }}
{{- range $rule := .rules }}
{{- $resources := list }}
{{- range $resource := $rule.resources }}
{{- if eq $.ofNamespaces (has (splitList "/" $resource | first) (list "modeldeployments" "modelreplicas" "controllerrevisions")) }}
{{- $resources = append $resources $resource }}
{{- end }}
{{- end }}
{{- if $resources }}
{{- $out = append $out (merge (dict "resources" $resources) $rule) }}
{{- end }}
{{- end }}
{{- toYaml $out }}
{{- end }}

{{- /* metalfleet.namespaceRule is one NamespaceRule for the rules of the values. unlimited is the memory that lifts the default. */}}
{{- define "metalfleet.namespaceRule" }}
{{- $rules := .rules }}
{{- $out := dict }}
{{- range $from, $to := dict "sources" "sources" "names" "servedNames" "priorityClasses" "priorityClasses" "tolerations" "tolerations" }}
{{- if hasKey $rules $from }}
{{- $_ := set $out $to (get $rules $from | default list) }}
{{- end }}
{{- end }}
{{- if hasKey $rules "memory" }}
{{- with $rules.memory | default $.unlimited }}
{{- $_ := set $out "memoryLimit" . }}
{{- end }}
{{- end }}
{{- if hasKey $rules "prefetch" }}
{{- $_ := set $out "prefetchLimit" ($rules.prefetch | default "0") }}
{{- end }}
{{- if hasKey $rules "replicasPerMac" }}
{{- $_ := set $out "replicasPerMac" ($rules.replicasPerMac | default 64 | int) }}
{{- end }}
{{- if hasKey $rules "residencyPriority" }}
{{- $_ := set $out "maxEvictionPriority" (int $rules.residencyPriority) }}
{{- end }}
{{- with $rules.macSelector }}
{{- $_ := set $out "macSelector" . }}
{{- end }}
{{- with $out }}
{{- toYaml . }}
{{- end }}
{{- end }}
