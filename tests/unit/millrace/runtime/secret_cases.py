"""Texts with a secret in them, and texts that only look as if: for our own masks and for Spark's."""

from __future__ import annotations

#: As storage keys look: with what ends a value elsewhere. It stands in none of the texts but as the secret.
SECRET = "hUnter2+9a/kk=="  # noqa: S105
#: The same where it must fit into an address.
WORD = "hUnter2.9a-kk"

HIDDEN = (
    f"fs.azure.account.key.lake.dfs.core.windows.net={SECRET}",
    f"fs.azure.sas.container.lake.blob.core.windows.net={SECRET}",
    f"fs.azure.sas.fixed.token.lake: {SECRET}",
    f"spark.hadoop.parquet.encryption.key.list={SECRET}",
    f"fs.s3a.encryption.key={SECRET}",
    f"fs.s3a.server-side-encryption.key = {SECRET}",
    f"fs.azure.encryption.encoded.client-provided-key={SECRET}",
    f"DefaultEndpointsProtocol=https;AccountName=lake;AccountKey={SECRET};EndpointSuffix=core.windows.net",
    f"Endpoint=sb://x/;SharedAccessKeyName=all;SharedAccessKey={SECRET}",
    f"https://lake/x?sv=2024&sig={SECRET}&se=2030",
    f"https://lake/x?X-Amz-Signature={SECRET}&X-Amz-Security-Token={SECRET}",
    f"SharedAccessSignature={SECRET}",
    f"Authorization: Bearer {SECRET}",
    f"Authorization: Basic {SECRET}",
    f"authorization=SharedKey lake:{SECRET}",
    f'{{"Authorization": "Bearer {SECRET}"}}',
    f"sent Bearer {SECRET} and was refused",
    f"https://{WORD}@git.example/repo",
    f"git+https://{WORD}@git.example/repo",
    f"https://bob:{WORD}@git.example/repo",
    f"s3a://bob:{WORD}@lake/tables",
    f"jdbc:postgresql://bob:p@{WORD}@db/x",
    f"redis://:{WORD}@cache:6379",
    f'required username="bob" password="{SECRET} with \\" inside";',
    f"sasl.password={SECRET}, x=1",
    f"{{ssl.key.password: '{SECRET}'}}",
    f'{{"sasl.password": "{SECRET}", "x": 1}}',
    f'{{\\"password\\": \\"{SECRET}\\"}}',
    f"{{'api_key': '{SECRET}'}}",
    f"MILLRACE__KAFKA__OPTIONS__SASL_PASSWORD={SECRET}",
    f"AWS_SESSION_TOKEN={SECRET}",
    f"PGPASSWORD={SECRET} psql",
    f"run it with --sasl-password {SECRET} again",
    f"-Djavax.net.ssl.keyStorePassword={SECRET}",
    f"pwd={SECRET}",
    f"Set-Cookie: {WORD}; Path=/",
    f"-----BEGIN RSA PRIVATE KEY-----\n{SECRET}\n-----END RSA PRIVATE KEY-----\nand more",
    f"-----BEGIN PRIVATE KEY-----\n{SECRET}",
    f"token eyJhbGciOiJIUzI1NiJ9.eyJ{WORD.replace('.', '')}.abc",
)

SHOWN = (
    "state.encryption.key_file=/run/secrets/state.keys",
    "spark.authenticate.secret.file=/run/x",
    "sasl.oauthbearer.token.endpoint.url=https://login.example/x",
    "fs.s3a.aws.credentials.provider=org.apache.Hadoop",
    "abfss://container@lake.dfs.core.windows.net/x",
    "wasbs://container@lake/x",
    "sasl.username=bob, sasl.mechanism=PLAIN",
    "give a token in MILLRACE_DASHBOARD_TOKEN, or stay on 127.0.0.1",
    "kafka.options.sasl.password: must not be empty",
    "Bearer authentication is needed",
    "Project [a#1, sasl_user#2] Batched: true, Location: InMemoryFileIndex [file:/tmp/x]",
    "spark.key_groups=64",
    "http://127.0.0.1:8600/healthz, http://me.example/a@b",
    "author=ada, signal=3, keyboard=x, sasquatch=1, design=flat",
)
