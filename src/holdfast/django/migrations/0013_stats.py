from django.db import migrations

from holdfast.django.schema import HoldfastSchema


class Migration(migrations.Migration):
    dependencies = [("holdfast", "0012_places_and_stops")]
    operations = [HoldfastSchema(13)]
