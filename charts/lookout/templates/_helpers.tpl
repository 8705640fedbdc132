{{/* Names, labels, images and environments that several templates share. */}}

{{/* Pods of a StatefulSet have its name and a hash in a label, so its name may have at most 52 characters, and 39 without "-prune-encode". */}}
{{- define "lookout.name" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride }}
{{- else if contains "lookout" .Release.Name }}{{ .Release.Name | trunc 39 | trimSuffix "-" }}
{{- else }}{{ printf "%s-lookout" .Release.Name | trunc 39 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Labels of an object; call with (dict "root" $ "component" name). */}}
{{- define "lookout.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: lookout
{{ include "lookout.selector" . }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "lookout.selector" -}}
app.kubernetes.io/name: lookout
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Full reference of an image; call with (dict "root" $ "image" name). */}}
{{- define "lookout.image" -}}
{{- $image := .root.Values.image }}
{{- with index $image.digests .image }}{{ $image.prefix }}{{ $.image }}@{{ . }}
{{- else }}{{ $image.prefix }}{{ .image }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "lookout.bootstrap" -}}
{{- if .Values.tryout.enabled }}{{ include "lookout.name" . }}-tryout-kafka:9092
{{- else }}{{ required "kafka.bootstrap: give your Kafka's bootstrap servers, or set tryout.enabled=true" .Values.kafka.bootstrap }}{{ end }}
{{- end }}

{{/* Address at which clients outside the cluster reach the bundled broker. An IPv6 address is put in brackets. */}}
{{- define "lookout.outside" -}}
{{- with .Values.tryout.kafka.outside }}{{ ternary (printf "[%s]" .host) .host (contains ":" .host) }}:{{ .port }}{{ end }}
{{- end }}

{{/* Security contexts of a container and a pod, as the Pod Security Standard `restricted` requires. */}}
{{- define "lookout.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "lookout.podSecurity" -}}
runAsNonRoot: true
{{- with int .root.Values.runAsUser }}
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
# Do not change the owner of every file in a large claim at each start.
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* The parts of a pod's spec that all pods share; call with (dict "root" $ "part" values). */}}
{{- define "lookout.podCommon" -}}
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .root.Values.terminationGracePeriodSeconds }}
securityContext: {{- include "lookout.podSecurity" . | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* What a pod of the fleet requires of its node; call with (dict "root" $ "part" values). */}}
{{- define "lookout.placement" -}}
{{- $additions := include "lookout.podAdditions" . | fromJson }}
{{- with $additions.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $additions.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- else }}
# Zones are preferred here, because a spread constraint over zones would disable the one over nodes if nodes have no zone label.
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: topology.kubernetes.io/zone
          labelSelector:
            matchLabels: {{- include "lookout.selector" . | nindent 14 }}
{{- end }}
{{- with .part.priorityClassName | default $additions.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $additions.schedulerName }}
schedulerName: {{ . }}
{{- end }}
{{- with $additions.dnsPolicy }}
dnsPolicy: {{ . }}
{{- end }}
{{- range $name := list "dnsConfig" "hostAliases" "resourceClaims" }}
{{- with get $additions $name }}
{{ $name }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with mergeOverwrite (dict) ($additions.nodeSelector | default dict) (.part.nodeSelector | default dict) }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $gpus := int (get .part "gpus" | default 0) }}
{{- $tolerations := concat ($additions.tolerations | default list) (.part.tolerations | default list) }}
tolerations:
  {{- with $tolerations }}{{ toYaml . | nindent 2 }}{{ end }}
  {{- if $gpus }}
  - {key: {{ .part.gpuTaint }}, operator: Exists, effect: NoSchedule}
  {{- end }}
  # The default of Kubernetes is five minutes.
  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 5}
  - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 60}
{{- end }}

{{/* Spreads pods of a component over nodes if possible; call with (dict "root" $ "component" name "part" values). */}}
{{- define "lookout.spread" -}}
topologySpreadConstraints:
{{- with get (include "lookout.podAdditions" . | fromJson) "topologySpreadConstraints" }}
{{- toYaml . | nindent 2 }}
{{- else }}
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "lookout.selector" $ | nindent 8 }}
{{- end }}
{{- end }}

{{/* The ServiceAccount of a component, without a token and without rights; call with (dict "root" $ "component" name). */}}
{{- define "lookout.account" -}}
{{- $accounts := .root.Values.serviceAccounts }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "lookout.name" .root }}-{{ .component }}
  labels: {{- include "lookout.labels" . | nindent 4 }}
  {{- with mergeOverwrite (dict) (deepCopy $accounts.annotations) (get $accounts.own .component | default dict) }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end }}

{{/* IP families of a Service. */}}
{{- define "lookout.ipFamilies" -}}
{{- with .Values.services.ipFamilyPolicy }}
ipFamilyPolicy: {{ . }}
{{- end }}
{{- with .Values.services.ipFamilies }}
ipFamilies: {{ toJson . }}
{{- end }}
{{- end }}

{{/* A PodDisruptionBudget: drains evict one healthy pod at a time, and broken pods at any time; call with (dict "root" $ "component" name). */}}
{{- define "lookout.disruption" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "lookout.name" .root }}-{{ .component }}
  labels: {{- include "lookout.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- include "lookout.selector" . | nindent 6 }}
{{- end }}

{{/* Lists of additions to a pod, each with the key by which the API server distinguishes entries. */}}
{{- define "lookout.additionKeys" -}}
{"extraEnv": "name", "extraVolumes": "name", "extraVolumeMounts": "mountPath", "extraContainers": "name", "initContainers": "name", "hostAliases": "ip", "resourceClaims": "name"}
{{- end }}

{{/* Additions to a pod as JSON; the part's own override those for all pods; call with (dict "root" $ "part" values). */}}
{{- define "lookout.podAdditions" -}}
{{- $all := deepCopy .root.Values.pod }}
{{- $own := deepCopy (get (.part | default dict) "pod" | default dict) }}
{{- range $name, $key := include "lookout.additionKeys" . | fromJson }}
{{- if and (hasKey $all $name) (hasKey $own $name) }}
{{- $replaced := list }}
{{- range index $own $name }}{{ $replaced = append $replaced (get . $key) }}{{ end }}
{{- $entries := list }}
{{- range index $all $name }}
{{- if not (has (get . $key) $replaced) }}{{ $entries = append $entries . }}{{ end }}
{{- end }}
{{- $_ := set $own $name (concat $entries (index $own $name)) }}
{{- end }}
{{- end }}
{{- mergeOverwrite $all $own | toJson }}
{{- end }}

{{/* One list of the additions; call with (dict "root" $ "part" values "name" name). */}}
{{- define "lookout.podAddition" -}}
{{- with get (include "lookout.podAdditions" . | fromJson) .name }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* Labels and annotations of a pod; call with (dict "root" $ "component" name "part" values). */}}
{{- define "lookout.podMetadata" -}}
{{- $additions := include "lookout.podAdditions" . | fromJson }}
labels: {{- mergeOverwrite ($additions.labels | default dict) (include "lookout.labels" . | fromYaml) | toYaml | nindent 2 }}
{{- with $additions.annotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Arguments, from the values, of the jobs that create and compare topics. */}}
{{- define "lookout.topicArguments" -}}
- --partitions={{ .Values.topics.partitions }}
- --replication={{ .Values.topics.replication | default (ternary 1 3 .Values.tryout.enabled) }}
{{- if .Values.canary.enabled }}
- --canary
{{- end }}
{{- range $topic, $hours := .Values.topics.retentionHours }}
- --retention-hours={{ $topic }}={{ $hours }}
{{- end }}
{{- range $topic, $hours := .Values.topics.tieredLocalHours }}
- --tiered-local-hours={{ $topic }}={{ $hours }}
{{- end }}
{{- end }}

{{/* Environment with which a container reaches Kafka. Passwords are read from mounted secrets. */}}
{{- define "lookout.kafkaEnv" -}}
{{- $root := .root }}
{{- $kafka := $root.Values.kafka }}
- {name: LOOKOUT_BOOTSTRAP, value: {{ include "lookout.bootstrap" $root | quote }}}
- {name: LOOKOUT_RELEASE, value: {{ printf "%s.%s" $root.Release.Namespace $root.Release.Name | quote }}}
{{- with $kafka.prefix }}
- {name: LOOKOUT_PREFIX, value: {{ . | quote }}}
{{- end }}
{{- if not $root.Values.tryout.enabled }}
{{- $sasl := ne $kafka.sasl.mechanism "" }}
{{- if or $sasl $kafka.tls.enabled }}
- {name: LOOKOUT_KAFKA_PROTOCOL, value: {{ printf "%s%s" (ternary "sasl_" "" $sasl) (ternary "ssl" "plaintext" $kafka.tls.enabled) }}}
{{- end }}
{{- if $sasl }}
- {name: LOOKOUT_KAFKA_MECHANISM, value: {{ $kafka.sasl.mechanism }}}
- {name: LOOKOUT_KAFKA_USERNAME_FILE, value: /etc/lookout/kafka-user/username}
- {name: LOOKOUT_KAFKA_PASSWORD_FILE, value: /etc/lookout/kafka-user/password}
{{- with $kafka.sasl.tokenUrl }}
- {name: LOOKOUT_KAFKA_TOKEN_URL, value: {{ . | quote }}}
{{- end }}
{{- with $kafka.sasl.tokenScope }}
- {name: LOOKOUT_KAFKA_TOKEN_SCOPE, value: {{ . | quote }}}
{{- end }}
{{- if $kafka.sasl.tokenCaSecret }}
- {name: LOOKOUT_KAFKA_TOKEN_CA_FILE, value: /etc/lookout/kafka-token-ca/ca.crt}
{{- end }}
{{- end }}
{{- if and $kafka.tls.enabled $kafka.tls.caSecret }}
- {name: LOOKOUT_KAFKA_CA_FILE, value: /etc/lookout/kafka-ca/ca.crt}
{{- end }}
{{- if and $kafka.tls.enabled (get $kafka.tls.clientSecrets .component | default $kafka.tls.clientSecret) }}
- {name: LOOKOUT_KAFKA_CERT_FILE, value: /etc/lookout/kafka-client/tls.crt}
- {name: LOOKOUT_KAFKA_KEY_FILE, value: /etc/lookout/kafka-client/tls.key}
{{- end }}
{{- end }}
{{- $options := dict }}
{{- range $name, $value := $kafka.options }}{{ $_ := set $options $name (toString $value) }}{{ end }}
{{- with $kafka.rackLabel }}
- name: KAFKA_RACK
  valueFrom: {fieldRef: {fieldPath: {{ printf "metadata.labels['%s']" . | quote }}}}
{{- $_ := set $options "client.rack" "$(KAFKA_RACK)" }}
{{- end }}
{{- if $options }}
- {name: LOOKOUT_KAFKA_OPTIONS, value: {{ toJson $options | quote }}}
{{- end }}
{{- end }}

{{/* Environment with which a container reaches Redis. */}}
{{- define "lookout.redisEnv" -}}
{{- $redis := .Values.redis }}
{{- if .Values.tryout.enabled }}
- {name: LOOKOUT_REDIS_URL, value: "redis://{{ include "lookout.name" . }}-tryout-redis:6379/0"}
{{- else }}
- {name: LOOKOUT_REDIS_URL, value: {{ required "redis.url: give your Redis's address, or set tryout.enabled=true" $redis.url | quote }}}
{{- if $redis.cluster }}
- {name: LOOKOUT_REDIS_CLUSTER, value: "true"}
{{- end }}
{{- if $redis.sentinel }}
- {name: LOOKOUT_REDIS_SENTINEL, value: {{ $redis.sentinel | quote }}}
{{- if $redis.sentinelAuth }}
- {name: LOOKOUT_REDIS_SENTINEL_AUTH, value: "true"}
{{- end }}
{{- end }}
{{- if $redis.username }}
- {name: LOOKOUT_REDIS_USERNAME, value: {{ $redis.username | quote }}}
{{- end }}
{{- if $redis.passwordSecret }}
- {name: LOOKOUT_REDIS_PASSWORD_FILE, value: /etc/lookout/redis-user/password}
{{- end }}
{{- if $redis.caSecret }}
- {name: LOOKOUT_REDIS_CA_FILE, value: /etc/lookout/redis-ca/ca.crt}
{{- end }}
{{- if $redis.clientSecret }}
- {name: LOOKOUT_REDIS_CERT_FILE, value: /etc/lookout/redis-client/tls.crt}
- {name: LOOKOUT_REDIS_KEY_FILE, value: /etc/lookout/redis-client/tls.key}
{{- end }}
{{- end }}
{{- end }}

{{/* The fleet's gRPC credential: mutual TLS with one certificate for all stages. */}}
{{- define "lookout.grpcSecret" -}}
{{ .Values.grpc.secret | default (printf "%s-grpc" (include "lookout.name" .)) }}
{{- end }}
{{- define "lookout.grpcName" -}}
{{ include "lookout.name" . }}.fleet.internal
{{- end }}
{{- define "lookout.grpcSource" -}}
{{- if .Values.grpc.secret }}secret
{{- else if eq .Values.grpc.source "auto" }}{{ ternary "cert-manager" "job" (.Capabilities.APIVersions.Has "cert-manager.io/v1") }}
{{- else }}{{ .Values.grpc.source }}{{ end }}
{{- end }}
{{- define "lookout.grpcEnv" -}}
- {name: LOOKOUT_GRPC_CA_FILE, value: /etc/lookout/grpc/ca.crt}
- {name: LOOKOUT_GRPC_CERT_FILE, value: /etc/lookout/grpc/tls.crt}
- {name: LOOKOUT_GRPC_KEY_FILE, value: /etc/lookout/grpc/tls.key}
- {name: LOOKOUT_GRPC_TLS_NAME, value: {{ include "lookout.grpcName" . }}}
{{- end }}

{{/* Certificates and passwords that a component gets as files: a list of (name, secret, items: path to key); without items, all keys of the secret. Pods notice when the files change. */}}
{{- define "lookout.secretFiles" -}}
{{- $component := .component }}
{{- $files := list }}
{{- if not .root.Values.tryout.enabled }}
{{- with .root.Values.kafka }}
{{- $client := get .tls.clientSecrets $component | default .tls.clientSecret }}
{{- $user := get .sasl.secrets $component | default .sasl.secret }}
{{- if and .tls.enabled .tls.caSecret }}{{ $files = append $files (dict "name" "kafka-ca" "secret" .tls.caSecret "items" (dict "ca.crt" .tls.caKey)) }}{{ end }}
{{- if and .tls.enabled $client }}{{ $files = append $files (dict "name" "kafka-client" "secret" $client) }}{{ end }}
{{- if .sasl.tokenCaSecret }}{{ $files = append $files (dict "name" "kafka-token-ca" "secret" .sasl.tokenCaSecret "items" (dict "ca.crt" "ca.crt")) }}{{ end }}
{{- if .sasl.mechanism }}
{{- $user = required "kafka.sasl.secret: name the secret with the user's name and password" $user }}
{{- $files = append $files (dict "name" "kafka-user" "secret" $user "items" (dict "username" .sasl.usernameKey "password" .sasl.passwordKey)) }}
{{- end }}
{{- end }}
{{- with .root.Values.redis }}
{{- if .caSecret }}{{ $files = append $files (dict "name" "redis-ca" "secret" .caSecret "items" (dict "ca.crt" .caKey)) }}{{ end }}
{{- if .clientSecret }}{{ $files = append $files (dict "name" "redis-client" "secret" .clientSecret) }}{{ end }}
{{- if .passwordSecret }}{{ $files = append $files (dict "name" "redis-user" "secret" .passwordSecret "items" (dict "password" .passwordKey)) }}{{ end }}
{{- end }}
{{- end }}
{{- if eq $component "gateway" }}
{{- with .root.Values.gateway }}
{{- if .database.secret }}{{ $files = append $files (dict "name" "database" "secret" .database.secret "items" (dict "url" .database.urlKey)) }}{{ end }}
{{- if .tls.secret }}{{ $files = append $files (dict "name" "http" "secret" .tls.secret) }}{{ end }}
{{- if .oidc.secret }}{{ $files = append $files (dict "name" "oidc" "secret" .oidc.secret "items" (dict "client-secret" .oidc.secretKey)) }}{{ end }}
{{- end }}
{{- end }}
{{- if and (eq $component "notify") .root.Values.notify.secret }}
{{- $files = append $files (dict "name" "notify-secrets" "secret" .root.Values.notify.secret) }}
{{- end }}
{{- if and (has $component (list "gateway" "notify")) .root.Values.notify.enabled }}
{{- range $name, $secret := pick .root.Values.notify "links" "push" }}
{{- if $secret.secret }}{{ $files = append $files (dict "name" $name "secret" $secret.secret "items" (dict "key" $secret.key)) }}{{ end }}
{{- end }}
{{- end }}
{{- $store := dict }}
{{- if has $component (list "prefill" "recall") }}{{ $store = .root.Values.prefill.memory }}{{ end }}
{{- if has $component (list "recordings" "recordings-plan") }}{{ $store = .root.Values.recordings.stores }}{{ end }}
{{- if eq $component "gateway" }}{{ $store = .root.Values.gateway.keep }}{{ end }}
{{- with $store.secret }}
{{- $files = append $files (dict "name" "object-store" "secret" . "items" (dict "access-key" $store.accessKey "secret-key" $store.secretKey)) }}
{{- end }}
{{- toJson $files }}
{{- end }}
{{- define "lookout.secretMounts" -}}
{{- range include "lookout.secretFiles" . | fromJsonArray }}
- {name: {{ .name }}, mountPath: /etc/lookout/{{ .name }}, readOnly: true}
{{- end }}
{{- end }}
{{- define "lookout.secretVolumes" -}}
{{- range include "lookout.secretFiles" . | fromJsonArray }}
- name: {{ .name }}
  secret:
    secretName: {{ .secret }}
    defaultMode: 0440
    {{- with .items }}
    items:
      {{- range $path, $key := . }}
      - {key: {{ $key }}, path: {{ $path }}}
      {{- end }}
    {{- end }}
{{- end }}
{{- end }}

{{/* URL at which people reach the gateway; empty: it is not configured. */}}
{{- define "lookout.gatewayUrl" -}}
{{- with .Values.gateway }}
{{- if .publicUrl }}{{ .publicUrl }}
{{- else if .ingress.enabled }}https://{{ .ingress.host }}{{ end }}
{{- end }}
{{- end }}

{{/* Settings as environment variables; call with a list of maps, of which later ones take precedence. */}}
{{- define "lookout.settings" -}}
{{- $all := dict }}
{{- range . }}{{ $all = mergeOverwrite $all (deepCopy .) }}{{ end }}
{{- range $name, $value := $all }}
- {name: LOOKOUT_{{ $name | upper }}, value: {{ (kindIs "float64" $value | ternary (printf "%v" $value) (kindIs "string" $value | ternary $value (toJson $value))) | quote }}}
{{- end }}
{{- end }}

{{/* Environment for the durable tier of chapters, for prefill and recall. */}}
{{- define "lookout.memoryEnv" -}}
{{- with .Values.prefill.memory.url }}
- {name: LOOKOUT_MEMORY_URL, value: {{ . | quote }}}
{{- end }}
{{- include "lookout.storeEnv" .Values.prefill.memory }}
{{- end }}

{{/* Environment with which an object store is reached; call with the values that have its endpoint, region and secret. */}}
{{- define "lookout.storeEnv" -}}
{{- $store := . }}
{{- with $store.endpoint }}
- {name: AWS_ENDPOINT_URL, value: {{ . | quote }}}
{{- if hasPrefix "http://" . }}
- {name: AWS_ALLOW_HTTP, value: "true"}
{{- end }}
{{- end }}
{{- with $store.region }}
- {name: AWS_REGION, value: {{ . | quote }}}
{{- end }}
{{- if $store.secret }}
- {name: AWS_ACCESS_KEY_ID_FILE, value: /etc/lookout/object-store/access-key}
- {name: AWS_SECRET_ACCESS_KEY_FILE, value: /etc/lookout/object-store/secret-key}
{{- end }}
{{- end }}

{{/* Port of an object store; call with the same. */}}
{{- define "lookout.storePort" -}}
{{- regexFind ":[0-9]+$" (urlParse (.endpoint | default "https://object-store")).host | trimPrefix ":" | default (ternary "80" "443" (hasPrefix "http://" .endpoint)) }}
{{- end }}

{{/* Rules of egress that several NetworkPolicies share: name servers; Kafka and Redis; the Kubernetes API. */}}
{{- define "lookout.dnsEgress" -}}
{{- $policy := .Values.networkPolicy }}
- to:
    - {namespaceSelector: {}, podSelector: {matchLabels: {{ toJson $policy.dnsLabels }}}}
    {{- range $policy.dnsNetworks }}
    - ipBlock: {cidr: {{ . }}}
    {{- end }}
  ports:
    {{- range $policy.dnsPorts }}
    - {protocol: UDP, port: {{ . }}}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
{{- end }}

{{- define "lookout.dependenciesEgress" -}}
{{- if .Values.tryout.enabled }}
{{- range $component, $port := dict "tryout-kafka" 9092 "tryout-redis" 6379 }}
- to:
    - podSelector:
        matchLabels: {{- include "lookout.selector" (dict "root" $ "component" $component) | nindent 10 }}
  ports: [{protocol: TCP, port: {{ $port }}}]
{{- end }}
{{- else }}
{{- $ports := concat .Values.networkPolicy.dependencyPorts (include "lookout.serverPorts" . | fromJsonArray) | uniq }}
{{- include "lookout.openPorts" (dict "ports" $ports "networks" .Values.networkPolicy.dependencyNetworks) }}
{{- end }}
{{- end }}

{{/* Ports of kafka.bootstrap, redis.url and the token endpoint, as JSON. */}}
{{- define "lookout.serverPorts" -}}
{{- $ports := list }}
{{- range splitList "," .Values.kafka.bootstrap }}
{{- with regexFind ":[0-9]+$" (trim .) }}{{ $ports = append $ports (trimPrefix ":" . | int) }}{{ end }}
{{- end }}
{{- with .Values.redis.url }}
{{- /* Go cannot parse an address of several Sentinels as a URL. */}}
{{- range splitList "," (regexReplaceAll "^rediss?://([^/?]*).*$" . "${1}") }}
{{- $ports = append $ports (regexFind ":[0-9]+$" . | trimPrefix ":" | default "6379" | int) }}
{{- end }}
{{- if $.Values.redis.sentinel }}{{ $ports = append $ports 6379 }}{{ end }}
{{- end }}
{{- with .Values.kafka.sasl.tokenUrl }}
{{- $port := regexFind ":[0-9]+$" (urlParse .).host | trimPrefix ":" | default (ternary "80" "443" (hasPrefix "http://" .)) }}
{{- $ports = append $ports (int $port) }}
{{- end }}
{{- toJson $ports }}
{{- end }}

{{- define "lookout.apiEgress" -}}
{{- include "lookout.openPorts" (dict "ports" .Values.networkPolicy.apiPorts "networks" .Values.networkPolicy.apiNetworks) }}
{{- end }}

{{/* A rule that allows ports at some networks, or at every address if no network is given; call with (dict "ports" ... "networks" ...). */}}
{{- define "lookout.openPorts" -}}
- ports:
    {{- range .ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with .networks }}
  to:
    {{- range . }}
    - ipBlock: {cidr: {{ . }}}
    {{- end }}
  {{- end }}
{{- end }}

{{/* A quantity of Kubernetes (500m, 2, 1.5Gi) as a number. */}}
{{- define "lookout.quantity" -}}
{{- $text := toString . }}
{{- $units := dict "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 }}
{{- mulf (regexFind "^[0-9.]+" $text | float64) (get $units (regexFind "[a-zA-Z]+$" $text) | default 1.0) }}
{{- end }}
